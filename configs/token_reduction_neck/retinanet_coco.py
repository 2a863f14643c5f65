# STViT-S + token-reduction neck across levels + FPN + RetinaNet on COCO, 1x: configs/stvit/retinanet_coco.py with one more neck.
#
# All that is added is ours: super tokens of 32 x 32 pixels of each of the three maps attend to each other in one block of 256
# channels, 25 x 42 for each level of an 800 x 1333 image. The neck starts as the identity. Not trained by us.
_base_ = "../stvit/retinanet_coco.py"
model = dict(
    neck=[
        dict(
            type="mmvit_plugins.TokenReductionNeck",
            in_channels=[128, 320, 512],
            reducer=[dict(type="mmvit_plugins.SuperTokens", cell=cell, border="masked") for cell in (4, 2, 1)],
            cross_level=True,
            embed_dims=256,
            num_heads=8,
            mlp_ratio=4.0,
        ),
        dict(
            type="FPN",
            in_channels=[128, 320, 512],
            out_channels=256,
            add_extra_convs="on_input",
            num_outs=5,
        ),
    ],
)
