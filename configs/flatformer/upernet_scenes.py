# FlatFormer-mini for images (ours, 1 M parameters) + UPerHead on built-in scenes: needs no data and no weights, and trains in
# minutes on two CPU cores.
#
# All numbers are ours, those of configs/stvit/upernet_scenes.py. 32 x 32 patches at stride 4 in 16 groups of 64.
_base_ = [
    "../_base_/models/upernet.py",
    "../_base_/datasets/scenes_seg.py",
    "../_base_/schedules/scenes_seg.py",
    "../_base_/runtime/seg.py",
]
model = dict(
    data_preprocessor=dict(size=(128, 128)),
    backbone=dict(type="mmvit_plugins.FlatFormer", arch="mini", out_indices=(0, 1, 2, 3)),
    decode_head=dict(in_channels=[24, 48, 96, 128], channels=48, num_classes=6, norm_cfg=dict(type="BN")),
    auxiliary_head=dict(in_channels=96, channels=48, num_classes=6, norm_cfg=dict(type="BN")),
)
default_hooks = dict(logger=dict(interval=20), checkpoint=dict(interval=325))
