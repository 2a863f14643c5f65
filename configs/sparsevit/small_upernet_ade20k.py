# Swin-S + UPerNet on ADE20K: upernet_ade20k.py with the larger arch. Published: 47.64 mIoU single scale (not trained by us).
_base_ = "./upernet_ade20k.py"
model = dict(backbone=dict(arch="small", init_cfg=dict(checkpoint="checkpoints/swin_small_224.pth")))
