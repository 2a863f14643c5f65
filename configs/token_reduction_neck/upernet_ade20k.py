# STViT-S + token-reduction neck across levels + UPerNet on ADE20K, crop 512: configs/stvit/upernet_ade20k.py with a neck.
#
# All that is added is ours. 16 x 16 super tokens of each of the four maps of a crop (cells of 8, 4, 2 and 1 tokens), 1024 in all,
# attend to each other in one block of 256 channels. The neck starts as the identity. Not trained by us.
_base_ = "../stvit/upernet_ade20k.py"
model = dict(
    neck=dict(
        type="mmvit_plugins.TokenReductionNeck",
        in_channels=[64, 128, 320, 512],
        reducer=[dict(type="mmvit_plugins.SuperTokens", cell=cell, border="masked") for cell in (8, 4, 2, 1)],
        cross_level=True,
        embed_dims=256,
        num_heads=8,
        mlp_ratio=4.0,
    ),
)
