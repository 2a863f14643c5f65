# STViT-S at 384, fine-tuned from the 224 model: the authors' recipe (docs/recipes.md): 30 epochs at constant lr 5e-6, weight
# decay 1e-8. They keep the model in eval mode: here norm_eval holds the batch norms of backbone and neck, and drop path
# is 0. Published: 85.0 % top-1, 14.1 GFLOPs.
# Super tokens of 32 x 32 pixels, 12 x 12 of them at 384.
#
# `load_from` is the 224 model in MMPretrain's layout: your own from in1k.py, or the authors' through
# `python tools/convert_checkpoint.py`.
_base_ = [
    "../_base_/models/image_classifier.py",
    "../_base_/datasets/imagenet_384.py",
    "../_base_/schedules/imagenet_384_30e.py",
    "../_base_/runtime/cls.py",
]
model = dict(
    backbone=dict(type="mmvit_plugins.STViT", arch="small", out_indices=(3,), drop_path_rate=0.0, norm_eval=True),
    neck=dict(type="mmvit_plugins.STViTProjection", in_channels=512, out_channels=1024, norm_eval=True),
    head=dict(in_channels=1024),
)
load_from = "checkpoints/stvit_small_224_mmpretrain.pth"
