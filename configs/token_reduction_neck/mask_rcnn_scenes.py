# STViT-mini (ours) + token-reduction neck across levels + FPN + a slim Mask R-CNN on built-in scenes: needs no data and no
# weights. Needs mmcv with compiled operators.
#
# All numbers are ours: configs/stvit/mask_rcnn_scenes.py with the neck of upernet_scenes.py before its FPN.
_base_ = "../stvit/mask_rcnn_scenes.py"
model = dict(
    neck=[
        dict(
            type="mmvit_plugins.TokenReductionNeck",
            in_channels=[24, 48, 96, 128],
            reducer=[dict(type="mmvit_plugins.SuperTokens", cell=cell, border="masked") for cell in (8, 4, 2, 1)],
            cross_level=True,
            embed_dims=64,
            num_heads=4,
        ),
        dict(type="FPN", in_channels=[24, 48, 96, 128], out_channels=64, num_outs=4),
    ],
)
