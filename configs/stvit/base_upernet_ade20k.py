# STViT-B + UPerNet on ADE20K: upernet_ade20k.py with the larger arch. Drop path stays at the Swin recipe's 0.3 (Swin uses
# it for all its sizes); the ImageNet recipe of this arch has 0.4.
_base_ = "./upernet_ade20k.py"
model = dict(
    backbone=dict(arch="base", init_cfg=dict(checkpoint="checkpoints/stvit_base_224.pth")),
    decode_head=dict(in_channels=[96, 192, 384, 512]),
    auxiliary_head=dict(in_channels=384),
)
