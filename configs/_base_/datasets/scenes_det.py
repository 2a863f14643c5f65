# Built-in scenes for MMDetection: boxes and masks of spheres, boxes, cylinders and cones. No files, no network.
# CocoMetric has no annotation file here: it takes the truth from the samples, hence `instances` among the meta keys.
size = (128, 128)
num_classes = 4
train_pipeline = [
    dict(type="mmvit_plugins.LoadScene"),
    dict(type="RandomFlip", prob=0.5),
    dict(type="PackDetInputs"),
]
test_pipeline = [
    dict(type="mmvit_plugins.LoadScene"),
    dict(
        type="PackDetInputs",
        meta_keys=("img_id", "img_path", "ori_shape", "img_shape", "scale_factor", "instances"),
    ),
]
train_dataloader = dict(
    batch_size=4,
    num_workers=0,
    persistent_workers=False,
    sampler=dict(type="DefaultSampler", shuffle=True),
    dataset=dict(
        _scope_="mmdet",
        type="mmvit_plugins.ScenesDetDataset",
        split="train",
        num_scenes=800,
        size=size,
        cache=True,
        filter_cfg=dict(filter_empty_gt=True),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=1,
    num_workers=0,
    persistent_workers=False,
    drop_last=False,
    sampler=dict(type="DefaultSampler", shuffle=False),
    dataset=dict(
        _scope_="mmdet",
        type="mmvit_plugins.ScenesDetDataset",
        split="val",
        num_scenes=100,
        size=size,
        cache=True,
        test_mode=True,
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(_scope_="mmdet", type="CocoMetric", metric=["bbox", "segm"], format_only=False)
test_evaluator = val_evaluator
