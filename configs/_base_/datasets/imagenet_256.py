# ImageNet-1k at 256 (the size of Quadformer's quadtrees: 4 x 4 roots of 64 pixels); otherwise as imagenet_224.py: RandAugment
# m9-mstd0.5-inc1, random erasing 0.25, repeated augmentation. Test: short side 292, centre crop 256 (the usual 0.875).
# Where the data lie: `--data-root DIR` of the tools, or IMAGENET_ROOT=DIR with train/ and val/ below it.
dataset_type = "ImageNet"
data_root = "{{$IMAGENET_ROOT:data/imagenet}}"
bgr_mean = [103.53, 116.28, 123.675]
bgr_std = [57.375, 57.12, 58.395]
train_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="RandomResizedCrop", scale=256, backend="pillow", interpolation="bicubic"),
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
        fill_color=bgr_mean,
        fill_std=bgr_std,
    ),
    dict(type="PackInputs"),
]
test_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="ResizeEdge", scale=292, edge="short", backend="pillow", interpolation="bicubic"),
    dict(type="CenterCrop", crop_size=256),
    dict(type="PackInputs"),
]
train_dataloader = dict(
    batch_size=128,
    num_workers=8,
    persistent_workers=True,
    collate_fn=dict(type="default_collate"),
    sampler=dict(_scope_="mmpretrain", type="RepeatAugSampler", shuffle=True),
    dataset=dict(_scope_="mmpretrain", type=dataset_type, data_root=data_root, split="train", pipeline=train_pipeline),
)
val_dataloader = dict(
    batch_size=128,
    num_workers=8,
    persistent_workers=True,
    collate_fn=dict(type="default_collate"),
    sampler=dict(type="DefaultSampler", shuffle=False),
    dataset=dict(_scope_="mmpretrain", type=dataset_type, data_root=data_root, split="val", pipeline=test_pipeline),
)
test_dataloader = val_dataloader
val_evaluator = dict(_scope_="mmpretrain", type="Accuracy", topk=(1, 5))
test_evaluator = val_evaluator
