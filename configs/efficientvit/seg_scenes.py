# EfficientViT-B0 (MIT's) with its Cityscapes segmentation head on built-in scenes: needs no data and no weights.
#
# The architecture is the authors', every other number is ours. The schedule is that of the other families' scenes configs.
_base_ = [
    "../_base_/models/efficientvit_seg.py",
    "../_base_/datasets/scenes_seg.py",
    "../_base_/schedules/scenes_seg.py",
    "../_base_/runtime/seg.py",
]
model = dict(
    data_preprocessor=dict(size=(128, 128)),
    backbone=dict(arch="b0", norm_cfg=dict(type="BN")),
    decode_head=dict(in_channels=[32, 64, 128], channels=32, depth=1, num_classes=6, norm_cfg=dict(type="BN")),
)
default_hooks = dict(logger=dict(interval=20), checkpoint=dict(interval=325))
