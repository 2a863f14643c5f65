# Boundary alone, as in swin_scenes.py: one of its single-task twins.
_base_ = "../swin_scenes.py"
model = dict(only=["boundary"])
