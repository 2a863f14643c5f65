# EfficientViT-B0 on ADE20K: b1_seg_ade20k.py with another size. The authors have no such model:
# the head is that of their B0 for Cityscapes without the expansion, as their other ADE20K heads of the series.
_base_ = "./b1_seg_ade20k.py"
model = dict(
    backbone=dict(arch="b0", drop_path_rate=0.0, init_cfg=dict(checkpoint="checkpoints/efficientvit_b0.pth")),
    decode_head=dict(in_channels=[32, 64, 128], channels=32, depth=1),
)
