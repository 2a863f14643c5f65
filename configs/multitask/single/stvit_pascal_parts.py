# Parts alone, as in stvit_pascal.py: one of its single-task twins.
_base_ = "../stvit_pascal.py"
model = dict(only=["parts"])
