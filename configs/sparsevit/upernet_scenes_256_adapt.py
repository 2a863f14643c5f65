# Sparsity-aware adaptation of the trained dense model: 200 iterations with random pruning ratios. Validated at half of the
# windows of stages 1 and 2 and a quarter of stage 3.
_base_ = "./upernet_scenes_256.py"
max_iters = 200
model = dict(backbone=dict(pruning_ratios=(0.5, 0.5, 0.25, 0.0)))
custom_hooks = [dict(type="mmvit_plugins.SparsityAdaptationHook")]
train_cfg = dict(max_iters=max_iters, val_interval=max_iters)
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-2, by_epoch=False, begin=0, end=20),
    dict(type="PolyLR", eta_min=0.0, power=0.9, begin=20, end=max_iters, by_epoch=False),
]
default_hooks = dict(checkpoint=dict(interval=100))
