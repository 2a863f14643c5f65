# STViT-mini (ours, about 1 M parameters) with five dense tasks on built-in scenes: needs no data and no weights.
#
# All numbers are ours. Super tokens as in stvit/upernet_scenes.py. Single-task twins: single/stvit_scenes_<task>.py.
_base_ = [
    "../_base_/models/multitask_scenes.py",
    "../_base_/datasets/scenes_multitask.py",
    "../_base_/schedules/scenes_seg.py",
    "../_base_/runtime/multitask.py",
]
model = dict(
    backbone=dict(type="mmvit_plugins.STViT", arch="mini", out_indices=(0, 1, 2, 3)),
    head=dict(in_channels=[24, 48, 96, 128], channels=32, dropout_ratio=0.0, norm_cfg=dict(type="BN")),
)
default_hooks = dict(logger=dict(interval=20), checkpoint=dict(interval=325))
