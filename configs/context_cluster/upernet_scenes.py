# Context Cluster-mini (ours, 0.7 M parameters) + UPerHead on built-in scenes: needs no data and no weights, minutes on a CPU.
#
# All numbers are ours. 8, 4, 2, 1 regions per side with 2 x 2 centres: 4 x 4 points in a region of every stage of a 128 x 128
# scene. Layer scale starts at 0.1: from the published 1e-5 nothing is learnt in so few steps.
_base_ = [
    "../_base_/models/upernet.py",
    "../_base_/datasets/scenes_seg.py",
    "../_base_/schedules/scenes_seg.py",
    "../_base_/runtime/seg.py",
]
model = dict(
    data_preprocessor=dict(size=(128, 128)),
    backbone=dict(type="mmvit_plugins.ContextCluster", arch="mini", layer_scale=0.1, out_indices=(0, 1, 2, 3)),
    decode_head=dict(in_channels=[24, 48, 96, 128], channels=48, num_classes=6, norm_cfg=dict(type="BN")),
    auxiliary_head=dict(in_channels=96, channels=48, num_classes=6, norm_cfg=dict(type="BN")),
)
default_hooks = dict(logger=dict(interval=20), checkpoint=dict(interval=325))
