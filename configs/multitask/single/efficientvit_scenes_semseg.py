# Semseg alone, as in efficientvit_scenes.py: one of its single-task twins.
_base_ = "../efficientvit_scenes.py"
model = dict(only=["semseg"])
