# Boundary alone, as in sparsevit_pascal.py: one of its single-task twins.
_base_ = "../sparsevit_pascal.py"
model = dict(only=["boundary"])
