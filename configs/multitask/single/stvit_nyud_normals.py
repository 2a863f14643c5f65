# Normals alone, as in stvit_nyud.py: one of its single-task twins.
_base_ = "../stvit_nyud.py"
model = dict(only=["normals"])
