# As upernet_scenes.py, but the super tokens of each level attend among themselves: what mixing the levels is worth.
_base_ = "./upernet_scenes.py"
model = dict(neck=dict(cross_level=False))
