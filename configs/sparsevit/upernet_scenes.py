# SparseViT-mini (ours, 1 M parameters) without pruning + UPerHead on built-in scenes: needs no data, no weights and a few
# minutes on two CPU cores.
#
# All numbers are ours, those of configs/stvit/upernet_scenes.py. Windows of 4 x 4 tokens: 64, 16, 4 and 1 of them in a scene of
# 128 x 128 pixels.
_base_ = [
    "../_base_/models/upernet.py",
    "../_base_/datasets/scenes_seg.py",
    "../_base_/schedules/scenes_seg.py",
    "../_base_/runtime/seg.py",
]
model = dict(
    data_preprocessor=dict(size=(128, 128)),
    backbone=dict(type="mmvit_plugins.SparseViT", arch="mini", window_size=4, out_indices=(0, 1, 2, 3)),
    decode_head=dict(in_channels=[24, 48, 96, 128], channels=48, num_classes=6, norm_cfg=dict(type="BN")),
    auxiliary_head=dict(in_channels=96, channels=48, num_classes=6, norm_cfg=dict(type="BN")),
)
default_hooks = dict(logger=dict(interval=20), checkpoint=dict(interval=325))
