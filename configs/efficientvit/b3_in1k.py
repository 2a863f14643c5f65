# EfficientViT-B3 on ImageNet-1k at 224: b1_in1k.py with another size. Published: 83.47 % top-1 (not trained by us).
# RandAugment n2 m6, mixup or cutmix with alpha 0.3, drop path 0.1.
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
        magnitude_level=6,
        magnitude_std=0.5,
        hparams=dict(pad_val=[104, 116, 124], interpolation="bicubic"),
    ),
    dict(type="PackInputs"),
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
model = dict(
    backbone=dict(arch="b3", drop_path_rate=0.1),
    head=dict(in_channels=512, widths=(2304, 2560)),
    train_cfg=dict(augments=[dict(type="Mixup", alpha=0.3), dict(type="CutMix", alpha=0.3)]),
)
