# MSViT-Ti: as in1k.py with the width of DeiT-Ti.
_base_ = "./in1k.py"
model = dict(
    backbone=dict(arch="tiny", init_cfg=dict(checkpoint="checkpoints/deit_tiny.pth")),
    head=dict(in_channels=192),
)
