# EfficientViT-L1 on Cityscapes: b1_seg_cityscapes.py with another size and its published head.
# Published: 82.72 mIoU (not trained by us).
_base_ = "./b1_seg_cityscapes.py"
model = dict(
    backbone=dict(arch="l1", drop_path_rate=0.1, init_cfg=dict(checkpoint="checkpoints/efficientvit_l1.pth")),
    decode_head=dict(
        in_channels=[128, 256, 512], channels=256, depth=3, block="fused", act="gelu", expand_ratio=1, final_expand=1
    ),
)
