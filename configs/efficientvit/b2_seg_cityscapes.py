# EfficientViT-B2 on Cityscapes: b1_seg_cityscapes.py with another size and its published head.
# Published: 82.07 mIoU (not trained by us).
_base_ = "./b1_seg_cityscapes.py"
model = dict(
    backbone=dict(arch="b2", drop_path_rate=0.05, init_cfg=dict(checkpoint="checkpoints/efficientvit_b2.pth")),
    decode_head=dict(in_channels=[96, 192, 384], channels=96, depth=3),
)
