# upernet_scenes_256.py, dense, at a lower resolution: images are resized to 192 x 192 pixels, labels keep their 256 x 256, so that
# training and metrics ask for the same label maps at any resolution (MMSegmentation resizes the logits).
_base_ = "./upernet_scenes_256.py"
scale = (192, 192)
# Resize would resize all maps that seg_fields lists: it sees no such list.
resize = dict(
    type="KeyMapper",
    mapping=dict(img="img", img_shape="img_shape", scale_factor="scale_factor", seg_fields="none_of_them"),
    allow_nonexist_keys=True,
    transforms=[dict(type="Resize", scale=scale, interpolation="area")],
)
test_pipeline = [dict(type="mmvit_plugins.LoadScene"), resize, dict(type="PackSegInputs")]
train_pipeline = [*test_pipeline[:2], dict(type="RandomFlip", prob=0.5), test_pipeline[2]]
model = dict(data_preprocessor=dict(size=scale))
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = dict(dataset=dict(pipeline=test_pipeline))
