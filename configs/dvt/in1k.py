# DVT on DeiT-S, ImageNet-1k at 224: exits of 7 x 7, 10 x 10 and 14 x 14 tokens. Loss: the plain sum of the three (published).
# The authors give no training command for DeiT: optimiser, schedule, EMA and drop path 0.1 are their T2T-ViT-14 recipe (8 x
# 64). Head initialisation, mixup 0.8 or cutmix 1.0, RandAugment, erasing 0.25 are the bases'.
_base_ = [
    "../_base_/models/image_classifier.py",
    "../_base_/datasets/imagenet_224.py",
    "../_base_/schedules/imagenet_dvt_300e.py",
    "../_base_/runtime/cls.py",
]
model = dict(
    type="mmvit_plugins.DVTClassifier",
    backbone=dict(
        type="mmvit_plugins.DVT", arch="deit_small", image_size=224, token_grids=(7, 10, 14), drop_path_rate=0.1
    ),
    head=dict(in_channels=384),
)
train_dataloader = dict(batch_size=64)
val_evaluator = dict(type="mmvit_plugins.ExitAccuracy")
test_evaluator = dict(type="mmvit_plugins.ExitAccuracy")
# Thresholds come with the checkpoint (tools/search_exits.py).
custom_hooks = [
    dict(type="mmvit_plugins.EarlyExitHook"),
    dict(type="EMAHook", momentum=4e-5, priority="ABOVE_NORMAL"),
]
