# Quadformer-S on ImageNet-1k at 256: quadtree of 64, 32 and 16 pixel patches, 100 tokens instead of 256.
#
# From the paper's demo: image size, patch sizes, 100 tokens, the feature-based scorer. Its training recipe was not
# released: the schedule is that of _base_/schedules/imagenet_300e.py (docs/recipes.md), drop path 0.1 as DeiT-S, both
# our choice.
# The scorer reads torchvision's ShuffleNetV2 x0.5 weights, to be downloaded by you (README.md); without the file use
# pixel_blur_in1k.py. Not trained by us.
_base_ = [
    "../_base_/models/image_classifier.py",
    "../_base_/datasets/imagenet_256.py",
    "../_base_/schedules/imagenet_300e.py",
    "../_base_/runtime/cls.py",
]
model = dict(
    backbone=dict(
        type="mmvit_plugins.Quadformer",
        arch="small",
        min_patch_size=16,
        max_patch_size=64,
        num_tokens=100,
        scorer=dict(type="mmvit_plugins.FeatureScorer", checkpoint="checkpoints/shufflenetv2_x0.5.pth"),
        drop_path_rate=0.1,
        out_type="cls_token",
        out_indices=(3,),
    ),
    head=dict(in_channels=384),
)
