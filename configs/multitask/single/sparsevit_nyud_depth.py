# Depth alone, as in sparsevit_nyud.py: one of its single-task twins.
_base_ = "../sparsevit_nyud.py"
model = dict(only=["depth"])
