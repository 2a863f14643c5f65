# EfficientViT-L2 on ImageNet-1k at 224: l1_in1k.py with another size. Published: 85.05 % top-1 (not trained by us).
# RandAugment n2 m5, mixup or cutmix with alpha 0.4, drop path 0.1, erasing 0.2, MESA
# (self-distillation from the EMA weights, ratio 2.75, from 25 % of training). Only MESA's ratio and begin are known to us: see
# SelfDistillationClassifier for what is ours.
_base_ = "./l1_in1k.py"
model = dict(
    distillation=dict(ratio=2.75),
    backbone=dict(arch="l2"),
    train_cfg=dict(augments=[dict(type="Mixup", alpha=0.4), dict(type="CutMix", alpha=0.4)]),
)
