# EfficientViT-B2 on ImageNet-1k at 224: b1_in1k.py with another size. Published: 82.10 % top-1 (not trained by us).
# RandAugment n1 m3, mixup or cutmix with alpha 0.1, drop path 0.05.
_base_ = "./b1_in1k.py"
model = dict(
    backbone=dict(arch="b2", drop_path_rate=0.05),
    head=dict(in_channels=384, widths=(2304, 2560)),
)
