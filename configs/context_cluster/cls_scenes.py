# Context Cluster-mini (ours, 0.7 M parameters) classifying the main object of built-in scenes: needs no data and no weights.
#
# All numbers are ours, those of configs/stvit/cls_scenes.py. Layer scale starts at 0.1 (upernet_scenes.py).
_base_ = [
    "../_base_/models/image_classifier.py",
    "../_base_/datasets/scenes_cls.py",
    "../_base_/schedules/scenes_cls.py",
    "../_base_/runtime/cls.py",
]
model = dict(
    data_preprocessor=dict(num_classes=4),
    backbone=dict(type="mmvit_plugins.ContextCluster", arch="mini", layer_scale=0.1, out_indices=(3,)),
    neck=dict(type="GlobalAveragePooling"),
    head=dict(in_channels=128, num_classes=4, topk=(1,)),
    train_cfg=None,
)
default_hooks = dict(logger=dict(interval=25), checkpoint=dict(interval=2))
