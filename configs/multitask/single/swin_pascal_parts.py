# Parts alone, as in swin_pascal.py: one of its single-task twins.
_base_ = "../swin_pascal.py"
model = dict(only=["parts"])
