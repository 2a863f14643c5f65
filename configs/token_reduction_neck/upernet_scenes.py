# STViT-mini (ours) + token-reduction neck across levels + UPerHead on built-in scenes: needs no data and no weights.
#
# All numbers are ours; upernet_scenes.py of configs/stvit with a neck. 4 x 4 super tokens of each of the four maps of a 128 x 128
# scene (cells of 8, 4, 2 and 1 tokens), 64 in all, attend to each other in one block of 64 channels.
_base_ = "../stvit/upernet_scenes.py"
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
