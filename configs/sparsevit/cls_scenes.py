# SparseViT-mini (ours, 1 M parameters) without pruning, classifying the main object of built-in scenes: needs no data and no
# weights.
#
# All numbers are ours, those of configs/stvit/cls_scenes.py but for the schedule: windows learn this task slowly (34.5 % after the
# others' 10 epochs at twice the rate). Windows of 4 x 4 tokens: 64, 16, 4 and 1 of them in a scene.
_base_ = [
    "../_base_/models/image_classifier.py",
    "../_base_/datasets/scenes_cls.py",
    "../_base_/schedules/scenes_cls.py",
    "../_base_/runtime/cls.py",
]
model = dict(
    data_preprocessor=dict(num_classes=4),
    backbone=dict(type="mmvit_plugins.SparseViT", arch="mini", window_size=4, out_indices=(3,)),
    neck=dict(type="GlobalAveragePooling"),
    head=dict(in_channels=128, num_classes=4, topk=(1,)),
    train_cfg=None,
)
default_hooks = dict(logger=dict(interval=25), checkpoint=dict(interval=2))
train_cfg = dict(max_epochs=30)
optim_wrapper = dict(optimizer=dict(lr=5e-4))
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-2, by_epoch=True, begin=0, end=1, convert_to_iter_based=True),
    dict(type="CosineAnnealingLR", eta_min=0.0, by_epoch=True, begin=1, end=30, T_max=29, convert_to_iter_based=True),
]
