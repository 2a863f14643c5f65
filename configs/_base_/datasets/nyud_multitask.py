# NYUD-v2 with 40 classes, depth, normals and boundaries, in the layout of the multi-task repositories
# (docs/multitask.md says what goes where and how to get it). Crop and augmentation: InvPT (docs/multitask.md); depth
# values change with the scale. Where the data lie: `--data-root DIR` of the tools, or NYUD_ROOT=DIR.
data_root = "{{$NYUD_ROOT:data/NYUD_MT}}"
data_prefix = dict(img="images", semseg="segmentation", depth="depth", normals="normals", boundary="edge")
train_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="mmvit_plugins.LoadTaskAnnotations"),
    dict(type="mmvit_plugins.TaskResize", ratio_range=(0.5, 2.0)),
    dict(type="mmvit_plugins.TaskCrop", crop_size=(448, 576), cat_max_ratio=0.75),
    dict(type="mmvit_plugins.TaskFlip", prob=0.5),
    dict(type="mmseg.PhotoMetricDistortion"),
    dict(type="mmvit_plugins.PackDenseTaskInputs"),
]
# No resize: metrics compare at the image's own size.
test_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="mmvit_plugins.LoadTaskAnnotations"),
    dict(type="mmvit_plugins.PackDenseTaskInputs"),
]
train_dataloader = dict(
    batch_size=4,
    num_workers=4,
    persistent_workers=True,
    sampler=dict(type="InfiniteSampler", shuffle=True),
    dataset=dict(
        type="mmvit_plugins.NYUDv2MultiTaskDataset",
        data_root=data_root,
        data_prefix=data_prefix,
        ann_file="gt_sets/train.txt",
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=1,
    num_workers=4,
    persistent_workers=True,
    sampler=dict(type="DefaultSampler", shuffle=False),
    dataset=dict(
        type="mmvit_plugins.NYUDv2MultiTaskDataset",
        data_root=data_root,
        data_prefix=data_prefix,
        ann_file="gt_sets/val.txt",
        test_mode=True,
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader
val_evaluator = [
    dict(type="mmvit_plugins.LabelMetric", num_classes=40),
    dict(type="mmvit_plugins.DepthErrorMetric"),
    dict(type="mmvit_plugins.NormalsMetric"),
    dict(type="mmvit_plugins.BoundaryMetric", max_dist=0.011),
]
test_evaluator = val_evaluator
