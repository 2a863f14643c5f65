# Depth alone, as in stvit_scenes_neck.py: one of its single-task twins.
_base_ = "../stvit_scenes_neck.py"
model = dict(only=["depth"])
