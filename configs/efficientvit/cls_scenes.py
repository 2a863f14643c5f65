# EfficientViT-B0 (MIT's) classifying the main object of built-in scenes: needs no data and no weights.
#
# The backbone is the authors'; the head's widths are cut down to four classes. No mixup, cutmix or random erasing: the task is
# the shape of one object among several.
_base_ = [
    "../_base_/models/image_classifier.py",
    "../_base_/datasets/scenes_cls.py",
    "../_base_/schedules/scenes_cls.py",
    "../_base_/runtime/cls.py",
]
model = dict(
    data_preprocessor=dict(num_classes=4),
    backbone=dict(type="mmvit_plugins.EfficientViT", arch="b0", out_indices=(3,)),
    head=dict(type="mmvit_plugins.EfficientViTClsHead", in_channels=128, widths=(256, 320), num_classes=4, topk=(1,)),
    train_cfg=None,
)
default_hooks = dict(logger=dict(interval=25), checkpoint=dict(interval=2))
