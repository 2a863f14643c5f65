# As upernet_scenes.py with super tokens of 64 x 64 pixels, a quarter as many: attention among them costs a sixteenth.
_base_ = "./upernet_scenes.py"
model = dict(
    neck=dict(
        reducer=[dict(type="mmvit_plugins.SuperTokens", cell=cell, border="masked") for cell in (16, 8, 4, 2)],
    ),
)
