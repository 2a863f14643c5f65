# EfficientViT-L1: b1_mask_rcnn_coco.py with the larger arch and its drop path 0.1.
_base_ = "./b1_mask_rcnn_coco.py"
model = dict(
    backbone=dict(arch="l1", drop_path_rate=0.1, init_cfg=dict(checkpoint="checkpoints/efficientvit_l1.pth")),
    neck=dict(in_channels=[64, 128, 256, 512]),
)
