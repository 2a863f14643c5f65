# upernet_scenes_256.py, dense, at a lower resolution: images are resized to 128 x 128 pixels, labels keep their 256 x 256, so that
# training and metrics ask for the same label maps at any resolution (MMSegmentation resizes the logits).
_base_ = "./upernet_scenes_256.py"
scale = (128, 128)
train_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="Resize", scale=scale),
    dict(type="LoadAnnotations"),
    dict(type="RandomFlip", prob=0.5),
    dict(type="PackSegInputs"),
]
test_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="Resize", scale=scale),
    dict(type="LoadAnnotations"),
    dict(type="PackSegInputs"),
]
model = dict(data_preprocessor=dict(size=scale))
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = dict(dataset=dict(pipeline=test_pipeline))
