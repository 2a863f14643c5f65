# As upernet_camvid.py, but the super tokens of each level attend among themselves: what mixing the levels is worth.
_base_ = "./upernet_camvid.py"
model = dict(neck=dict(cross_level=False))
