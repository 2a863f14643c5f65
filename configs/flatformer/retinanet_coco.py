# FlatFormer-S for images (ours) + RetinaNet on COCO, 1x (12 epochs).
#
# The model is ours. Borrowed: the PVT recipe (docs/recipes.md): AdamW 1e-4, weight decay 1e-4, 8 GPUs x 2 images, FPN from
# stage 2 with extra convolutions on the input; warm-up 500 is that of PVT's Mask R-CNN. Ours: drop path 0.1.
_base_ = [
    "../_base_/models/retinanet.py",
    "../_base_/datasets/coco_detection.py",
    "../_base_/schedules/coco_1x_adamw.py",
    "../_base_/runtime/det.py",
]
model = dict(
    backbone=dict(
        type="mmvit_plugins.FlatFormer",
        arch="small",
        out_indices=(1, 2, 3),
        drop_path_rate=0.1,
        init_cfg=dict(type="mmvit_plugins.OfficialPretrained", checkpoint="checkpoints/flatformer_small_in1k.pth"),
    ),
    neck=dict(in_channels=[128, 320, 512]),
)
optim_wrapper = dict(optimizer=dict(weight_decay=1e-4), paramwise_cfg=None)
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-3, by_epoch=False, begin=0, end=500),
    dict(type="MultiStepLR", by_epoch=True, begin=0, end=12, milestones=[8, 11], gamma=0.1),
]
