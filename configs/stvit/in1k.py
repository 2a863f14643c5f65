# STViT-S on ImageNet-1k at 224: the authors' recipe (docs/recipes.md). Published: 83.6 % top-1 with 25 M parameters and 4.4
# GFLOPs (their README; not trained by us). Drop path 0.1.
# Super tokens of 8 x 8 and 4 x 4 tokens in stages 1 and 2, 32 x 32 pixels each: 7 x 7 of them at 224.
_base_ = [
    "../_base_/models/image_classifier.py",
    "../_base_/datasets/imagenet_224.py",
    "../_base_/schedules/imagenet_300e.py",
    "../_base_/runtime/cls.py",
]
model = dict(
    backbone=dict(type="mmvit_plugins.STViT", arch="small", out_indices=(3,), drop_path_rate=0.1),
    neck=dict(type="mmvit_plugins.STViTProjection", in_channels=512, out_channels=1024),
    head=dict(in_channels=1024),
)
