# Instances alone, as in stvit_scenes_instances.py: one of its single-task twins.
_base_ = "../stvit_scenes_instances.py"
model = dict(only=["instances"])
