# EfficientViT-L1 on ImageNet-1k at 224: b1_in1k.py with another size. Published: 84.48 % top-1 (not trained by us).
# RandAugment n2 m5, mixup or cutmix with alpha 0.2, drop path 0.1, erasing 0.2, MESA
# (self-distillation from the EMA weights, ratio 2.0, from 25 % of training). Only MESA's ratio and begin are known to us: see
# SelfDistillationClassifier for what is ours.
_base_ = "./b1_in1k.py"
train_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="RandomResizedCrop", scale=224, backend="pillow", interpolation="bicubic"),
    dict(type="RandomFlip", prob=0.5, direction="horizontal"),
    dict(
        type="RandAugment",
        policies="timm_increasing",
        num_policies=2,
        total_level=10,
        magnitude_level=5,
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
    type="mmvit_plugins.SelfDistillationClassifier",
    distillation=dict(ratio=2.0),
    backbone=dict(arch="l1", drop_path_rate=0.1),
    head=dict(in_channels=512, widths=(3072, 3200), act="gelu"),
    train_cfg=dict(augments=[dict(type="Mixup", alpha=0.2), dict(type="CutMix", alpha=0.2)]),
)
optim_wrapper = dict(optimizer=dict(lr=1.2e-3))  # 1.5e-4 for each of 8 GPUs
custom_hooks = [
    dict(type="mmvit_plugins.RandomInputSizeHook", sizes=(128, 160, 192, 224)),
    dict(type="EMAHook", momentum=2e-4, update_buffers=True, priority="ABOVE_NORMAL"),
    dict(type="mmvit_plugins.BatchNormReestimationHook", num_samples=8192),
    dict(type="mmvit_plugins.SelfDistillationHook", begin=0.25),
]
