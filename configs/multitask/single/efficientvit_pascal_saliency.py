# Saliency alone, as in efficientvit_pascal.py: one of its single-task twins.
_base_ = "../efficientvit_pascal.py"
model = dict(only=["saliency"])
