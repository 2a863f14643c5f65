# ImageNet-1k at 384 for fine-tuning: the augmentation of imagenet_224.py (that the authors keep it at 384 is not in
# docs/recipes.md), 64 images per GPU. Test: short side 438, centre crop 384, the ratio of imagenet_224.py.
_base_ = "./imagenet_224.py"
train_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="RandomResizedCrop", scale=384, backend="pillow", interpolation="bicubic"),
    dict(type="RandomFlip", prob=0.5, direction="horizontal"),
    dict(
        type="RandAugment",
        policies="timm_increasing",
        num_policies=2,
        total_level=10,
        magnitude_level=9,
        magnitude_std=0.5,
        hparams=dict(pad_val=[104, 116, 124], interpolation="bicubic"),
    ),
    dict(
        type="RandomErasing",
        erase_prob=0.25,
        mode="rand",
        min_area_ratio=0.02,
        max_area_ratio=1 / 3,
        fill_color=[103.53, 116.28, 123.675],
        fill_std=[57.375, 57.12, 58.395],
    ),
    dict(type="PackInputs"),
]
test_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="ResizeEdge", scale=438, edge="short", backend="pillow", interpolation="bicubic"),
    dict(type="CenterCrop", crop_size=384),
    dict(type="PackInputs"),
]
train_dataloader = dict(batch_size=64, dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(batch_size=64, dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
