# DVT on DeiT-S at 384, fine-tuned from the 224 model: exits of 12 x 12, 17 x 17 and 24 x 24 tokens, whose patches (32, 23, 16
# pixels) are those of 224. Position tables are resized when the weights are loaded. Ours: the authors show no 384 model; the
# schedule is the base's (30 epochs at 5e-6).
_base_ = [
    "../_base_/models/image_classifier.py",
    "../_base_/datasets/imagenet_384.py",
    "../_base_/schedules/imagenet_384_30e.py",
    "../_base_/runtime/cls.py",
]
model = dict(
    type="mmvit_plugins.DVTClassifier",
    backbone=dict(type="mmvit_plugins.DVT", arch="deit_small", image_size=384, token_grids=(12, 17, 24)),
    head=dict(in_channels=384),
)
val_evaluator = dict(type="mmvit_plugins.ExitAccuracy")
test_evaluator = dict(type="mmvit_plugins.ExitAccuracy")
custom_hooks = [dict(type="mmvit_plugins.EarlyExitHook")]
load_from = "checkpoints/dvt_deit_small_224_mmpretrain.pth"
