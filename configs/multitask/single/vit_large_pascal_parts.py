# Parts alone, as in vit_large_pascal.py: one of its single-task twins.
_base_ = "../vit_large_pascal.py"
model = dict(only=["parts"])
