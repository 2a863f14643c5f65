# Sparsity-aware adaptation of upernet_cityscapes.py: 40k iterations with random pruning ratios in training, validated dense.
# The distribution and lr / 10 are those of mask_rcnn_coco_adapt.py; the schedule is ours.
# `checkpoint` is your segmentor of upernet_cityscapes.py.
_base_ = "./upernet_cityscapes.py"
model = dict(
    backbone=dict(init_cfg=None),
    init_cfg=dict(type="mmvit_plugins.OfficialPretrained", checkpoint="checkpoints/upernet_swin_tiny_cityscapes.pth"),
)
train_cfg = dict(max_iters=40000, val_interval=4000)
optim_wrapper = dict(optimizer=dict(lr=6e-6))
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-3, by_epoch=False, begin=0, end=1000),
    dict(type="PolyLR", eta_min=0.0, power=1.0, begin=1000, end=40000, by_epoch=False),
]
default_hooks = dict(checkpoint=dict(interval=4000))
custom_hooks = [dict(type="mmvit_plugins.SparsityAdaptationHook")]
