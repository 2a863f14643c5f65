# stvit_scenes.py with a token-reduction neck that all heads share: the tokens of the four maps, reduced, mixed across
# levels and brought back. Needs no data and no weights.
#
# All numbers are ours, those of token_reduction_neck/upernet_scenes.py.
_base_ = "./stvit_scenes.py"
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
