# The baseline of fcn_scenes.py: the same transformer on 64 uniform patches of 16 pixels.
_base_ = "./fcn_scenes.py"
model = dict(backbone=dict(min_patch_size=16, max_patch_size=16))
