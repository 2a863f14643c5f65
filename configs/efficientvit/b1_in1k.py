# EfficientViT-B1 (MIT's) on ImageNet-1k: the authors' recipe (docs/recipes.md), trained at sizes drawn from 128, 160, 192 and
# 224, tested at 224. Published: 79.39 % top-1 with 9.1 M parameters and 0.52 GMACs (their README; not trained by us).
#
# Theirs: RandAugment n1 m3, mixup or cutmix (1:1 per batch) with alpha 0.1, drop path 0.05, label smoothing 0.1 with binary
# cross entropy, EMA 0.9998, gradients clipped by value at 2, batch norms' statistics computed again before each validation, and
# the schedule. Ours where their recipe says nothing: the 8192 images of that computation; RandAugment's operations, fill and
# magnitude noise are those of our other ImageNet configs; the loss is summed over classes and averaged over images. They crop at
# the drawn size, we crop at 224 and resize the batch.
_base_ = [
    "../_base_/models/image_classifier.py",
    "../_base_/datasets/imagenet_224.py",
    "../_base_/schedules/imagenet_efficientvit_320e.py",
    "../_base_/runtime/cls.py",
]
train_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="RandomResizedCrop", scale=224, backend="pillow", interpolation="bicubic"),
    dict(type="RandomFlip", prob=0.5, direction="horizontal"),
    dict(
        type="RandAugment",
        policies="timm_increasing",
        num_policies=1,
        total_level=10,
        magnitude_level=3,
        magnitude_std=0.5,
        hparams=dict(pad_val=[104, 116, 124], interpolation="bicubic"),
    ),
    dict(type="PackInputs"),
]
train_dataloader = dict(
    sampler=dict(_delete_=True, type="DefaultSampler", shuffle=True), dataset=dict(pipeline=train_pipeline)
)
model = dict(
    backbone=dict(type="mmvit_plugins.EfficientViT", arch="b1", out_indices=(3,), drop_path_rate=0.05),
    head=dict(
        type="mmvit_plugins.EfficientViTClsHead",
        in_channels=256,
        widths=(1536, 1600),
        loss=dict(type="LabelSmoothLoss", label_smooth_val=0.1, mode="original", use_sigmoid=True),
    ),
    train_cfg=dict(augments=[dict(type="Mixup", alpha=0.1), dict(type="CutMix", alpha=0.1)]),
)
custom_hooks = [
    dict(type="mmvit_plugins.RandomInputSizeHook", sizes=(128, 160, 192, 224)),
    dict(type="EMAHook", momentum=2e-4, update_buffers=True, priority="ABOVE_NORMAL"),
    dict(type="mmvit_plugins.BatchNormReestimationHook", num_samples=8192),
]
