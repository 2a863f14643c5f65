# Built-in scenes for MMSegmentation, 6 classes (background, ground, sphere, box, cylinder, cone). No files, no network;
# training and validation scenes are disjoint. Each scene is rendered once and kept in memory.
size = (128, 128)
num_classes = 6
train_pipeline = [
    dict(type="mmvit_plugins.LoadScene"),
    dict(type="RandomFlip", prob=0.5),
    dict(type="PackSegInputs"),
]
test_pipeline = [dict(type="mmvit_plugins.LoadScene"), dict(type="PackSegInputs")]
# No rescaled images here: LoadScene brings the label map with the image, so a resize would move it too.
tta_pipeline = [
    dict(type="mmvit_plugins.LoadScene"),
    dict(
        _scope_="mmseg",
        type="TestTimeAug",
        transforms=[
            [
                dict(type="RandomFlip", prob=0.0, direction="horizontal"),
                dict(type="RandomFlip", prob=1.0, direction="horizontal"),
            ],
            [dict(type="PackSegInputs")],
        ],
    ),
]
train_dataloader = dict(
    batch_size=8,
    num_workers=0,
    persistent_workers=False,
    sampler=dict(type="InfiniteSampler", shuffle=True),
    dataset=dict(
        _scope_="mmseg",
        type="mmvit_plugins.ScenesSegDataset",
        split="train",
        num_scenes=800,
        size=size,
        cache=True,
        pipeline=train_pipeline,
    ),
)
# All scenes have one size, so they may be validated in batches.
val_dataloader = dict(
    batch_size=20,
    num_workers=0,
    persistent_workers=False,
    sampler=dict(type="DefaultSampler", shuffle=False),
    dataset=dict(
        _scope_="mmseg",
        type="mmvit_plugins.ScenesSegDataset",
        split="val",
        num_scenes=100,
        size=size,
        cache=True,
        test_mode=True,
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(_scope_="mmseg", type="IoUMetric", iou_metrics=["mIoU"])
test_evaluator = val_evaluator
