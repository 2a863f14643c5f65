# STViT-mini (ours) + token-reduction neck across levels + UPerHead on CamVid: configs/stvit/mini_upernet_camvid.py with a neck.
#
#   python tools/train.py configs/token_reduction_neck/upernet_camvid.py --amp --data-root /path/to/camvid
#
# All numbers are ours. Super tokens of 32 x 32 pixels of each of the four maps (cells of 8, 4, 2 and 1 tokens) attend to each other
# in one block of 64 channels: 8 x 8 for each level of a 256 x 256 crop, 12 x 15 of a 360 x 480 image.
_base_ = "../stvit/mini_upernet_camvid.py"
model = dict(
    neck=dict(
        type="mmvit_plugins.TokenReductionNeck",
        in_channels=[24, 48, 96, 128],
        reducer=[dict(type="mmvit_plugins.SuperTokens", cell=cell, border="masked") for cell in (8, 4, 2, 1)],
        cross_level=True,
        embed_dims=64,
        num_heads=4,
    ),
)
