# PASCAL-Context with 21 classes, human parts, saliency, normals and boundaries, in the layout of the multi-task
# repositories (docs/multitask.md says what goes where and how to get it). Crop and augmentation: InvPT.
# Where the data lie: `--data-root DIR` of the tools, or PASCAL_MT_ROOT=DIR.
data_root = "{{$PASCAL_MT_ROOT:data/PASCAL_MT}}"
data_prefix = dict(
    img="JPEGImages",
    semseg="semseg/VOC12",
    parts="human_parts",
    saliency="sal_distill",
    normals="normals_distill",
    boundary="pascal-context/trainval",
)
# Images that VOC 2012 has no segmentation of.
fallback = dict(semseg="semseg/pascal-context")
train_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="mmvit_plugins.LoadTaskAnnotations"),
    dict(type="mmvit_plugins.TaskResize", ratio_range=(0.5, 2.0)),
    dict(type="mmvit_plugins.TaskCrop", crop_size=(512, 512), cat_max_ratio=0.75),
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
        type="mmvit_plugins.PASCALContextMultiTaskDataset",
        data_root=data_root,
        data_prefix=data_prefix,
        ann_file="ImageSets/Context/train.txt",
        fallback=fallback,
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=1,
    num_workers=4,
    persistent_workers=True,
    sampler=dict(type="DefaultSampler", shuffle=False),
    dataset=dict(
        type="mmvit_plugins.PASCALContextMultiTaskDataset",
        data_root=data_root,
        data_prefix=data_prefix,
        ann_file="ImageSets/Context/val.txt",
        fallback=fallback,
        test_mode=True,
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader
val_evaluator = [
    dict(type="mmvit_plugins.LabelMetric", num_classes=21),
    dict(type="mmvit_plugins.LabelMetric", task="parts", num_classes=7),
    dict(type="mmvit_plugins.SaliencyMetric"),
    dict(type="mmvit_plugins.NormalsMetric"),
    dict(type="mmvit_plugins.BoundaryMetric", max_dist=0.0075),
]
test_evaluator = val_evaluator
