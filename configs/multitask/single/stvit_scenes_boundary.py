# Boundary alone, as in stvit_scenes.py: one of its single-task twins.
_base_ = "../stvit_scenes.py"
model = dict(only=["boundary"])
