# EfficientViT-L3 on ImageNet-1k at 224: l1_in1k.py with another size. Published: 85.81 % top-1 (not trained by us).
# RandAugment n2 m6, mixup or cutmix with alpha 0.6, drop path 0.1, erasing 0.2, MESA
# (self-distillation from the EMA weights, ratio 3.5, from 25 % of training). Only MESA's ratio and begin are known to us: see
# SelfDistillationClassifier for what is ours.
_base_ = "./l1_in1k.py"
train_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="RandomResizedCrop", scale=224, backend="pillow", interpolation="bicubic"),
    dict(type="RandomFlip", prob=0.5, direction="horizontal"),
    dict(
        type="RandAugment",
        policies="timm_increasing",
        num_policies=2,
        total_level=10,
        magnitude_level=6,
        magnitude_std=0.5,
        hparams=dict(pad_val=[104, 116, 124], interpolation="bicubic"),
    ),
    dict(
        type="RandomErasing",
        erase_prob=0.2,
        mode="rand",
        min_area_ratio=0.02,
        max_area_ratio=1 / 3,
        fill_color=[103.53, 116.28, 123.675],
        fill_std=[57.375, 57.12, 58.395],
    ),
    dict(type="PackInputs"),
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
model = dict(
    distillation=dict(ratio=3.5),
    backbone=dict(arch="l3"),
    head=dict(in_channels=1024, widths=(6144, 6400), act="gelu"),
    train_cfg=dict(augments=[dict(type="Mixup", alpha=0.6), dict(type="CutMix", alpha=0.6)]),
)
