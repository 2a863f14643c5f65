# Built-in scenes for MMPretrain: the class is the shape of the main object (sphere, box, cylinder, cone). No files, no
# network.
size = (128, 128)
train_pipeline = [
    dict(type="mmvit_plugins.LoadScene"),
    dict(type="RandomFlip", prob=0.5, direction="horizontal"),
    dict(type="PackInputs"),
]
test_pipeline = [dict(type="mmvit_plugins.LoadScene"), dict(type="PackInputs")]
train_dataloader = dict(
    batch_size=16,
    num_workers=0,
    persistent_workers=False,
    collate_fn=dict(type="default_collate"),
    sampler=dict(type="DefaultSampler", shuffle=True),
    dataset=dict(
        _scope_="mmpretrain",
        type="mmvit_plugins.ScenesClsDataset",
        split="train",
        num_scenes=1600,
        size=size,
        cache=True,
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=50,
    num_workers=0,
    persistent_workers=False,
    collate_fn=dict(type="default_collate"),
    sampler=dict(type="DefaultSampler", shuffle=False),
    dataset=dict(
        _scope_="mmpretrain",
        type="mmvit_plugins.ScenesClsDataset",
        split="val",
        num_scenes=200,
        size=size,
        cache=True,
        test_mode=True,
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(_scope_="mmpretrain", type="Accuracy", topk=(1,))
test_evaluator = val_evaluator
