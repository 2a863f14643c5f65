# Depth alone, as in efficientvit_nyud.py: one of its single-task twins.
_base_ = "../efficientvit_nyud.py"
model = dict(only=["depth"])
