# As upernet_ade20k.py with super tokens of 64 x 64 pixels, 8 x 8 of each map of a crop, 256 in all. Not trained by us.
_base_ = "./upernet_ade20k.py"
model = dict(
    neck=dict(
        reducer=[dict(type="mmvit_plugins.SuperTokens", cell=cell, border="masked") for cell in (16, 8, 4, 2)],
    ),
)
