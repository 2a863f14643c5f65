# ToMe on a small ViT (ours, about 1 M parameters) + UPerHead on built-in scenes: needs no data and no weights.
#
# All numbers are ours: patches of 8 x 8 pixels, so the maps of blocks 2, 4, 5 and 6 have stride 8, rescaled to 4, 8, 16 and
# 32. r = 24 in each of 6 blocks: 257 tokens fall to 113, and are copied back to their places before each map.
_base_ = [
    "../_base_/models/upernet.py",
    "../_base_/datasets/scenes_seg.py",
    "../_base_/schedules/scenes_seg.py",
    "../_base_/runtime/seg.py",
]
model = dict(
    data_preprocessor=dict(size=(128, 128)),
    backbone=dict(
        type="mmvit_plugins.ToMe",
        model=dict(
            type="mmpretrain.VisionTransformer",
            arch=dict(embed_dims=128, num_layers=6, num_heads=4, feedforward_channels=512),
            img_size=128,
            patch_size=8,
            out_type="featmap",
        ),
        r=24,
        out_indices=(1, 3, 4, 5),
    ),
    neck=dict(type="Feature2Pyramid", embed_dim=128, rescales=[2, 1, 0.5, 0.25], norm_cfg=dict(type="BN")),
    decode_head=dict(in_channels=[128, 128, 128, 128], channels=48, num_classes=6, norm_cfg=dict(type="BN")),
    auxiliary_head=dict(in_channels=128, channels=48, num_classes=6, norm_cfg=dict(type="BN")),
)
default_hooks = dict(logger=dict(interval=20), checkpoint=dict(interval=325))
