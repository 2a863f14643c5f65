# STViT-mini (ours, about 1 M parameters) + UPerHead on built-in scenes: the job of `make demo`. Needs no data, no
# weights and about two minutes on two CPU cores.
#
# All numbers are ours. Super tokens cover 32 x 32 pixels in stages 1 and 2 (cells of 8 x 8 tokens at stride 4, 4 x 4 at
# stride 8), 4 x 4 of them in a 128 x 128 scene; stages 3 and 4 attend globally over 8 x 8 and 4 x 4 tokens.
_base_ = [
    "../_base_/models/upernet.py",
    "../_base_/datasets/scenes_seg.py",
    "../_base_/schedules/scenes_seg.py",
    "../_base_/runtime/seg.py",
]
model = dict(
    data_preprocessor=dict(size=(128, 128)),
    backbone=dict(type="mmvit_plugins.STViT", arch="mini", out_indices=(0, 1, 2, 3)),
    decode_head=dict(in_channels=[24, 48, 96, 128], channels=48, num_classes=6, norm_cfg=dict(type="BN")),
    auxiliary_head=dict(in_channels=96, channels=48, num_classes=6, norm_cfg=dict(type="BN")),
)
default_hooks = dict(logger=dict(interval=20), checkpoint=dict(interval=325))
