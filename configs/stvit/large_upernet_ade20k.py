# STViT-L + UPerNet on ADE20K: upernet_ade20k.py with the larger arch. Drop path stays at the Swin recipe's 0.3 (Swin uses
# it for all its sizes); the ImageNet recipe of this arch has 0.6.
_base_ = "./upernet_ade20k.py"
model = dict(
    backbone=dict(arch="large", init_cfg=dict(checkpoint="checkpoints/stvit_large_224.pth")),
    decode_head=dict(in_channels=[96, 192, 448, 640]),
    auxiliary_head=dict(in_channels=448),
)
