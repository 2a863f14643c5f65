# FlatFormer-S for images (ours, 30 M parameters) on ImageNet-1k at 224.
#
# Neither FlatFormer nor SparseViT has a classifier of this kind, so there is no published recipe or figure. Borrowed: the
# recipe of STViT-S, which is DeiT's but for the 310 epochs (docs/recipes.md). Ours: the model. All patches are kept; groups of
# 64 patches follow windows of 8 x 8, 7 x 7 of them at stride 4.
_base_ = [
    "../_base_/models/image_classifier.py",
    "../_base_/datasets/imagenet_224.py",
    "../_base_/schedules/imagenet_300e.py",
    "../_base_/runtime/cls.py",
]
model = dict(
    backbone=dict(type="mmvit_plugins.FlatFormer", arch="small", out_indices=(3,), drop_path_rate=0.1),
    neck=dict(type="GlobalAveragePooling"),
    head=dict(in_channels=512),
)
