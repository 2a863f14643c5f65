# A small plain vision transformer of MMPretrain with five dense tasks on built-in scenes: vit_large_nyud.py in small.
# Needs no data and no weights.
#
# As stvit_scenes.py with a backbone of one scale, from which MMSegmentation's Feature2Pyramid makes four. Sizes are
# ours.
_base_ = "./stvit_scenes.py"
model = dict(
    backbone=dict(
        _delete_=True,
        type="mmpretrain.VisionTransformer",
        arch=dict(embed_dims=128, num_layers=8, num_heads=4, feedforward_channels=512),
        img_size=128,
        patch_size=16,
        out_type="featmap",
        out_indices=(1, 3, 5, 7),
        final_norm=False,
    ),
    neck=dict(type="mmseg.Feature2Pyramid", embed_dim=128, rescales=[4, 2, 1, 0.5], norm_cfg=dict(type="BN")),
    head=dict(in_channels=[128, 128, 128, 128]),
)
