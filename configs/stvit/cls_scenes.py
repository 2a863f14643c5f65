# STViT-mini (ours, about 1 M parameters) classifying the main object of built-in scenes: needs no data and no weights.
#
# All numbers are ours. Super tokens cover 32 x 32 pixels in stages 1 and 2, 4 x 4 of them in a 128 x 128 scene. No mixup,
# cutmix or random erasing: the task is the shape of one object among several.
_base_ = [
    "../_base_/models/image_classifier.py",
    "../_base_/datasets/scenes_cls.py",
    "../_base_/schedules/scenes_cls.py",
    "../_base_/runtime/cls.py",
]
model = dict(
    data_preprocessor=dict(num_classes=4),
    backbone=dict(type="mmvit_plugins.STViT", arch="mini", out_indices=(3,)),
    neck=dict(type="mmvit_plugins.STViTProjection", in_channels=128, out_channels=256),
    head=dict(in_channels=256, num_classes=4, topk=(1,)),
    train_cfg=None,
)
default_hooks = dict(logger=dict(interval=25), checkpoint=dict(interval=2))
