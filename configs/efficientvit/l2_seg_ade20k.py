# EfficientViT-L2 on ADE20K: b1_seg_ade20k.py with another size and its published head.
# Published: 50.70 mIoU (not trained by us).
_base_ = "./b1_seg_ade20k.py"
model = dict(
    backbone=dict(arch="l2", drop_path_rate=0.1, init_cfg=dict(checkpoint="checkpoints/efficientvit_l2.pth")),
    decode_head=dict(in_channels=[128, 256, 512], channels=128, depth=3, block="fused", act="gelu", final_expand=8),
)
