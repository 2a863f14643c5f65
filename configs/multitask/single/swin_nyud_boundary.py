# Boundary alone, as in swin_nyud.py: one of its single-task twins.
_base_ = "../swin_nyud.py"
model = dict(only=["boundary"])
