# scikit-learn's 1797 handwritten digits (8 x 8 pixels, real images that come with the library: no download), as they are:
# 1000 to train, 397 held out for validation and thresholds, 400 to test. Needs the extra `search`.
train_pipeline = [
    dict(type="RandomCrop", crop_size=8, padding=1),
    dict(type="PackInputs"),
]
test_pipeline = [dict(type="PackInputs")]
train_dataloader = dict(
    batch_size=50,
    num_workers=0,
    persistent_workers=False,
    collate_fn=dict(type="default_collate"),
    sampler=dict(type="DefaultSampler", shuffle=True),
    dataset=dict(_scope_="mmpretrain", type="mmvit_plugins.DigitsDataset", split="train", pipeline=train_pipeline),
)
val_dataloader = dict(
    batch_size=100,
    num_workers=0,
    persistent_workers=False,
    collate_fn=dict(type="default_collate"),
    sampler=dict(type="DefaultSampler", shuffle=False),
    dataset=dict(
        _scope_="mmpretrain", type="mmvit_plugins.DigitsDataset", split="val", test_mode=True, pipeline=test_pipeline
    ),
)
test_dataloader = dict(
    batch_size=100,
    num_workers=0,
    persistent_workers=False,
    collate_fn=dict(type="default_collate"),
    sampler=dict(type="DefaultSampler", shuffle=False),
    dataset=dict(
        _scope_="mmpretrain", type="mmvit_plugins.DigitsDataset", split="test", test_mode=True, pipeline=test_pipeline
    ),
)
val_evaluator = dict(_scope_="mmpretrain", type="Accuracy", topk=(1,))
test_evaluator = val_evaluator
