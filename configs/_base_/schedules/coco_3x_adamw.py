# coco_1x_adamw.py over 36 epochs, drops at 27 and 33 (Swin recipe, docs/recipes.md).
_base_ = "./coco_1x_adamw.py"
train_cfg = dict(max_epochs=36)
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-3, by_epoch=False, begin=0, end=1000),
    dict(type="MultiStepLR", by_epoch=True, begin=0, end=36, milestones=[27, 33], gamma=0.1),
]
