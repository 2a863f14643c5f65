# Normals alone, as in sparsevit_scenes.py: one of its single-task twins.
_base_ = "../sparsevit_scenes.py"
model = dict(only=["normals"])
