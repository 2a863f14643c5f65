# ADE20K, 150 classes, crop 512: resize, crop and augmentation of the Swin and Context Cluster recipes (docs/recipes.md).
# The data set itself says that label 0 is "other" and becomes 255 (reduce_zero_label), once and for all steps.
# Where the data lie: `--data-root DIR` of the tools, or ADE20K_ROOT=DIR.
dataset_type = "ADE20KDataset"
data_root = "{{$ADE20K_ROOT:data/ade/ADEChallengeData2016}}"
train_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="LoadAnnotations"),
    dict(type="RandomResize", scale=(2048, 512), ratio_range=(0.5, 2.0), keep_ratio=True),
    dict(type="RandomCrop", crop_size=(512, 512), cat_max_ratio=0.75),
    dict(type="RandomFlip", prob=0.5),
    dict(type="PhotoMetricDistortion"),
    dict(type="PackSegInputs"),
]
# The label map is loaded after the resize: the metric compares at the image's own size.
test_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="Resize", scale=(2048, 512), keep_ratio=True),
    dict(type="LoadAnnotations"),
    dict(type="PackSegInputs"),
]
tta_pipeline = [
    dict(_scope_="mmseg", type="LoadImageFromFile"),
    dict(
        _scope_="mmseg",
        type="TestTimeAug",
        transforms=[
            [
                dict(type="Resize", scale=(int(2048 * ratio), int(512 * ratio)), keep_ratio=True)
                for ratio in (0.5, 0.75, 1.0, 1.25, 1.5, 1.75)
            ],
            [
                dict(type="RandomFlip", prob=0.0, direction="horizontal"),
                dict(type="RandomFlip", prob=1.0, direction="horizontal"),
            ],
            [dict(type="LoadAnnotations")],
            [dict(type="PackSegInputs")],
        ],
    ),
]
train_dataloader = dict(
    batch_size=2,
    num_workers=4,
    persistent_workers=True,
    sampler=dict(type="InfiniteSampler", shuffle=True),
    dataset=dict(
        _scope_="mmseg",
        type=dataset_type,
        data_root=data_root,
        data_prefix=dict(img_path="images/training", seg_map_path="annotations/training"),
        pipeline=train_pipeline,
    ),
)
# Batch 1: the images differ in size, and MMSegmentation refuses to batch those without padding.
val_dataloader = dict(
    batch_size=1,
    num_workers=4,
    persistent_workers=True,
    sampler=dict(type="DefaultSampler", shuffle=False),
    dataset=dict(
        _scope_="mmseg",
        type=dataset_type,
        data_root=data_root,
        data_prefix=dict(img_path="images/validation", seg_map_path="annotations/validation"),
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(_scope_="mmseg", type="IoUMetric", iou_metrics=["mIoU"])
test_evaluator = val_evaluator
