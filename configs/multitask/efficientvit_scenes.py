# EfficientViT-B0 (MIT) with five dense tasks on built-in scenes: needs no data and no weights.
#
# As stvit_scenes.py with another backbone, trained from scratch.
_base_ = "./stvit_scenes.py"
model = dict(
    backbone=dict(_delete_=True, type="mmvit_plugins.EfficientViT", arch="b0", out_indices=(0, 1, 2, 3)),
    head=dict(in_channels=[16, 32, 64, 128]),
)
