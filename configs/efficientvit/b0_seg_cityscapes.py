# EfficientViT-B0 on Cityscapes: b1_seg_cityscapes.py with another size and its published head.
# Published: 75.65 mIoU (not trained by us).
_base_ = "./b1_seg_cityscapes.py"
model = dict(
    backbone=dict(arch="b0", drop_path_rate=0.0, init_cfg=dict(checkpoint="checkpoints/efficientvit_b0.pth")),
    decode_head=dict(in_channels=[32, 64, 128], channels=32, depth=1),
)
