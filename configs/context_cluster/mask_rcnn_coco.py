# Context Cluster-S (2 x 2 centres) + Mask R-CNN on COCO, 1x: the authors' recipe. Published: 35.9 box AP, 33.8 mask AP, 33.6 M
# parameters in units of 2^20 (not trained by us).
#
# Theirs: AdamW 2e-4, weight decay 1e-4 on everything, 12 epochs with drops at 8 and 11, warm-up 500, 4 images per GPU, 1333 x
# 800, flip only, a norm behind each stage. Not found, so ours: 8 GPUs, drop path 0.1.
# Regions per side 8, 4, 2, 1, as at 224: 25 x 42 points in a region of every stage in an 800 x 1333 image.
_base_ = [
    "../_base_/models/mask_rcnn.py",
    "../_base_/datasets/coco_instance.py",
    "../_base_/schedules/coco_1x_adamw.py",
    "../_base_/runtime/det.py",
]
model = dict(
    backbone=dict(
        type="mmvit_plugins.ContextCluster",
        arch="small_feat2",
        out_indices=(0, 1, 2, 3),
        drop_path_rate=0.1,
        init_cfg=dict(type="mmvit_plugins.OfficialPretrained", checkpoint="checkpoints/coc_small.pth"),
    ),
    neck=dict(in_channels=[64, 128, 320, 512]),
)
train_dataloader = dict(batch_size=4)
optim_wrapper = dict(optimizer=dict(lr=2e-4, weight_decay=1e-4), paramwise_cfg=None)
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-3, by_epoch=False, begin=0, end=500),
    dict(type="MultiStepLR", by_epoch=True, begin=0, end=12, milestones=[8, 11], gamma=0.1),
]
auto_scale_lr = dict(base_batch_size=32)
