# A small cascade (ours) classifying the main object of built-in scenes, 64 x 64 pixels: exits of 4 x 4, 6 x 6 and 8 x 8
# tokens. Validation scenes are for thresholds (tools/search_exits.py), test scenes for the figures. All numbers are ours.
_base_ = [
    "../_base_/models/image_classifier.py",
    "../_base_/datasets/scenes_cls.py",
    "../_base_/schedules/scenes_cls.py",
    "../_base_/runtime/cls.py",
]
size = (64, 64)
model = dict(
    type="mmvit_plugins.DVTClassifier",
    data_preprocessor=dict(num_classes=4),
    backbone=dict(
        type="mmvit_plugins.DVT",
        arch="mini",
        image_size=64,
        token_grids=(4, 6, 8),
        reuse_hidden=32,
        reuse_channels=16,
    ),
    head=dict(in_channels=64, num_classes=4, topk=(1,)),
    train_cfg=None,
)
train_dataloader = dict(batch_size=32, dataset=dict(num_scenes=3000, size=size))
val_dataloader = dict(dataset=dict(num_scenes=400, size=size))
test_dataloader = dict(dataset=dict(split="test", num_scenes=400, size=size))
val_evaluator = dict(type="mmvit_plugins.ExitAccuracy")
test_evaluator = dict(type="mmvit_plugins.ExitAccuracy")
# Twice the epochs of the scenes' schedule (after ten, the exits were still getting better fast), in larger batches.
optim_wrapper = dict(optimizer=dict(lr=2e-3))
auto_scale_lr = dict(base_batch_size=32)
train_cfg = dict(max_epochs=20, val_interval=4)
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-2, by_epoch=True, begin=0, end=1, convert_to_iter_based=True),
    dict(type="CosineAnnealingLR", eta_min=0.0, by_epoch=True, begin=1, end=20, T_max=19, convert_to_iter_based=True),
]
custom_hooks = [dict(type="mmvit_plugins.EarlyExitHook")]
default_hooks = dict(logger=dict(interval=25), checkpoint=dict(interval=2))
