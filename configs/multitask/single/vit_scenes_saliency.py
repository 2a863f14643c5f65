# Saliency alone, as in vit_scenes.py: one of its single-task twins.
_base_ = "../vit_scenes.py"
model = dict(only=["saliency"])
