# STViT-mini (ours) classifying the main object of built-in scenes from fewer tokens: those of stages 3 and 4, reduced, mixed
# across levels and pooled for LinearClsHead. Needs no data and no weights.
#
# All numbers are ours: configs/stvit/cls_scenes.py with this neck in place of its projection.
_base_ = "../stvit/cls_scenes.py"
model = dict(
    backbone=dict(out_indices=(2, 3)),
    neck=dict(
        _delete_=True,
        type="mmvit_plugins.TokenReductionNeck",
        in_channels=[96, 128],
        reducer=[dict(type="mmvit_plugins.SuperTokens", cell=cell, border="masked") for cell in (2, 1)],
        cross_level=True,
        embed_dims=128,
        num_heads=4,
        output="pooled",
    ),
    head=dict(in_channels=128),
)
