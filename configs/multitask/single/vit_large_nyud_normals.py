# Normals alone, as in vit_large_nyud.py: one of its single-task twins.
_base_ = "../vit_large_nyud.py"
model = dict(only=["normals"])
