# As upernet_scenes.py, with the half of the patches that is most active in the first three stages, three quarters in the last.
# The ratios are ours. Windows of 11 x 11 patches hold about 64 kept ones, a group.
_base_ = "./upernet_scenes.py"
model = dict(backbone=dict(keep_ratio=(0.5, 0.5, 0.5, 0.75), window=11))
