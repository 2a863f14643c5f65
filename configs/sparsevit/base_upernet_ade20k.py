# Swin-B + UPerNet on ADE20K: upernet_ade20k.py with the larger arch. Published: 48.13 mIoU single scale (not trained by us).
_base_ = "./upernet_ade20k.py"
model = dict(
    backbone=dict(arch="base", init_cfg=dict(checkpoint="checkpoints/swin_base_224.pth")),
    decode_head=dict(in_channels=[128, 256, 512, 1024]),
    auxiliary_head=dict(in_channels=512),
)
