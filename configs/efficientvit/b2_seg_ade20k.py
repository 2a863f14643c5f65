# EfficientViT-B2 on ADE20K: b1_seg_ade20k.py with another size and its published head.
# Published: 45.94 mIoU (not trained by us).
_base_ = "./b1_seg_ade20k.py"
model = dict(
    backbone=dict(arch="b2", drop_path_rate=0.05, init_cfg=dict(checkpoint="checkpoints/efficientvit_b2.pth")),
    decode_head=dict(in_channels=[96, 192, 384], channels=96, depth=3),
)
