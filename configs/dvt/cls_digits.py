# A small cascade (ours) on scikit-learn's digits, 8 x 8 pixels: exits of 2 x 2, 4 x 4 and 8 x 8 tokens. The held-out split is for
# thresholds (tools/search_exits.py), the test split for the figures. All numbers are ours.
_base_ = [
    "../_base_/models/image_classifier.py",
    "../_base_/datasets/digits.py",
    "../_base_/schedules/digits_cls.py",
    "../_base_/runtime/cls.py",
]
model = dict(
    type="mmvit_plugins.DVTClassifier",
    data_preprocessor=dict(num_classes=10, mean=[75.0, 75.0, 75.0], std=[90.0, 90.0, 90.0]),
    backbone=dict(
        type="mmvit_plugins.DVT", arch="mini", image_size=8, token_grids=(2, 4, 8), reuse_hidden=32, reuse_channels=16
    ),
    head=dict(in_channels=64, num_classes=10, topk=(1,)),
    train_cfg=None,
)
val_evaluator = dict(type="mmvit_plugins.ExitAccuracy")
test_evaluator = dict(type="mmvit_plugins.ExitAccuracy")
custom_hooks = [dict(type="mmvit_plugins.EarlyExitHook")]
default_hooks = dict(logger=dict(interval=20), checkpoint=dict(interval=10))
