# Point clouds of the built-in scenes for MMSegmentation, with a map from above of 5 classes (ground, sphere, box, cylinder,
# cone). No files, no network; training and validation scenes are disjoint. Each scene is rendered once and kept in memory.
# 6.4 m x 6.4 m in front of the camera, where nineteen of twenty objects stand; a cell is 13 cm.
point_cloud_range = (-3.2, 1.2, -0.5, 3.2, 7.6, 2.5)
cells = (48, 48)
num_classes = 5
load = dict(type="mmvit_plugins.LoadSceneBEV", point_cloud_range=point_cloud_range, cells=cells)
train_pipeline = [load, dict(type="mmvit_plugins.FlipPoints", prob=0.5), dict(type="mmvit_plugins.PackPoints")]
test_pipeline = [load, dict(type="mmvit_plugins.PackPoints")]
tta_pipeline = [
    load,
    dict(
        _scope_="mmseg",
        type="TestTimeAug",
        transforms=[
            [
                dict(type="mmvit_plugins.FlipPoints", prob=0.0),
                dict(type="mmvit_plugins.FlipPoints", prob=1.0),
            ],
            [dict(type="mmvit_plugins.PackPoints")],
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
        type="mmvit_plugins.ScenesBEVDataset",
        split="train",
        num_scenes=800,
        size=(128, 128),
        cache=True,
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=20,
    num_workers=0,
    persistent_workers=False,
    sampler=dict(type="DefaultSampler", shuffle=False),
    dataset=dict(
        _scope_="mmseg",
        type="mmvit_plugins.ScenesBEVDataset",
        split="val",
        num_scenes=100,
        size=(128, 128),
        cache=True,
        test_mode=True,
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(_scope_="mmseg", type="IoUMetric", iou_metrics=["mIoU"])
test_evaluator = val_evaluator
