# CamVid, 11 classes, as an example of a folder of images and label maps of your own:
#
#   <data_root>/images/{train,val,test}/*.jpg         480 x 360 photographs
#   <data_root>/annotations/{train,val,test}/*.png    one byte per pixel: 0..10 = class, 255 = ignore
#
# Where the data lie: `python tools/train.py <config> --data-root DIR`, or CAMVID_ROOT=DIR in the environment (every
# tool that reads the config sees it). A plain `--cfg-options data_root=DIR` comes too late by itself: mmengine merges it
# after the three dataloaders below have taken the value.
#
# For other data: copy this file, change classes and palette (and num_classes of the model's heads), and the two suffixes.
dataset_type = "BaseSegDataset"
data_root = "{{$CAMVID_ROOT:data/camvid}}"
metainfo = dict(
    classes=(
        "sky",
        "building",
        "pole",
        "road",
        "pavement",
        "tree",
        "sign",
        "fence",
        "car",
        "pedestrian",
        "cyclist",
    ),
    palette=[
        [128, 128, 128],
        [128, 0, 0],
        [192, 192, 128],
        [128, 64, 128],
        [0, 0, 192],
        [128, 128, 0],
        [192, 128, 128],
        [64, 64, 128],
        [64, 0, 128],
        [64, 64, 0],
        [0, 128, 192],
    ],
)
# Height, width: a multiple of 32, the side of a super token in pixels. The smallest resize (0.75 x 480 x 360) is larger, so
# no crop is padded: LayerNorm over the all-zero padding makes MiT's gradients explode (measured: norm 4e4 against 2).
crop_size = (256, 256)
# Weight of each class in the loss of every CamVid config, so that the rare ones (sign 1.2 % of the pixels, cyclist 0.3 %)
# are learnt within the schedule: 1 / ln(1.02 + share) as in ENet (arXiv:1606.02147, section 5), from the training split,
# scaled to a mean of 1 over its pixels. Configs repeat the numbers (a test compares).
class_weight = [0.80, 0.61, 4.79, 0.48, 2.21, 1.25, 4.50, 4.57, 1.83, 5.43, 6.27]
train_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="LoadAnnotations"),
    dict(type="RandomResize", scale=(480, 360), ratio_range=(0.75, 1.75), keep_ratio=True),
    dict(type="RandomCrop", crop_size=crop_size, cat_max_ratio=0.75),
    dict(type="RandomFlip", prob=0.5),
    dict(type="PhotoMetricDistortion"),
    dict(type="PackSegInputs"),
]
test_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="LoadAnnotations"),
    dict(type="PackSegInputs"),
]
tta_pipeline = [
    dict(_scope_="mmseg", type="LoadImageFromFile"),
    dict(
        _scope_="mmseg",
        type="TestTimeAug",
        transforms=[
            [dict(type="Resize", scale_factor=ratio, keep_ratio=True) for ratio in (0.75, 1.0, 1.25, 1.5)],
            [
                dict(type="RandomFlip", prob=0.0, direction="horizontal"),
                dict(type="RandomFlip", prob=1.0, direction="horizontal"),
            ],
            [dict(type="LoadAnnotations")],
            [dict(type="PackSegInputs")],
        ],
    ),
]
train_dataloader = dict(
    batch_size=4,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type="InfiniteSampler", shuffle=True),
    dataset=dict(
        _scope_="mmseg",
        type=dataset_type,
        data_root=data_root,
        data_prefix=dict(img_path="images/train", seg_map_path="annotations/train"),
        img_suffix=".jpg",
        seg_map_suffix=".png",
        metainfo=metainfo,
        ignore_index=255,
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=1,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type="DefaultSampler", shuffle=False),
    dataset=dict(
        _scope_="mmseg",
        type=dataset_type,
        data_root=data_root,
        data_prefix=dict(img_path="images/val", seg_map_path="annotations/val"),
        img_suffix=".jpg",
        seg_map_suffix=".png",
        metainfo=metainfo,
        ignore_index=255,
        test_mode=True,
        pipeline=test_pipeline,
    ),
)
test_dataloader = dict(
    batch_size=1,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type="DefaultSampler", shuffle=False),
    dataset=dict(
        _scope_="mmseg",
        type=dataset_type,
        data_root=data_root,
        data_prefix=dict(img_path="images/test", seg_map_path="annotations/test"),
        img_suffix=".jpg",
        seg_map_suffix=".png",
        metainfo=metainfo,
        ignore_index=255,
        test_mode=True,
        pipeline=test_pipeline,
    ),
)
val_evaluator = dict(_scope_="mmseg", type="IoUMetric", iou_metrics=["mIoU"])
test_evaluator = dict(_scope_="mmseg", type="IoUMetric", iou_metrics=["mIoU"])
