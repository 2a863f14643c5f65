# Built-in scenes with five dense tasks: segmentation (6 classes), depth, normals, occlusion boundaries and saliency of
# the main object. No files, no network. All exact; depth and normals are unknown on the background.
size = (128, 128)
layers = ["seg", "depth", "normals", "boundary", "saliency", "camera"]
train_pipeline = [
    dict(type="mmvit_plugins.LoadScene", layers=layers),
    dict(type="mmvit_plugins.TaskFlip", prob=0.5),
    dict(type="mmvit_plugins.PackDenseTaskInputs"),
]
test_pipeline = [
    dict(type="mmvit_plugins.LoadScene", layers=layers),
    dict(type="mmvit_plugins.PackDenseTaskInputs"),
]
train_dataloader = dict(
    batch_size=8,
    num_workers=0,
    persistent_workers=False,
    sampler=dict(type="InfiniteSampler", shuffle=True),
    dataset=dict(
        type="mmvit_plugins.ScenesMultiTaskDataset",
        split="train",
        num_scenes=800,
        size=size,
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
        type="mmvit_plugins.ScenesMultiTaskDataset",
        split="val",
        num_scenes=100,
        size=size,
        cache=True,
        test_mode=True,
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader
# Fewer thresholds than the 99 of a benchmark: minutes matter here. The tolerance is NYUD-v2's.
val_evaluator = [
    dict(type="mmvit_plugins.LabelMetric", num_classes=6),
    dict(type="mmvit_plugins.DepthErrorMetric"),
    dict(type="mmvit_plugins.NormalsMetric"),
    dict(type="mmvit_plugins.BoundaryMetric", max_dist=0.011, num_thresholds=19),
    dict(type="mmvit_plugins.SaliencyMetric"),
]
test_evaluator = val_evaluator
