# Search and fine-tuning: tools/search_sparsity.py takes this config and the adapted weights and writes best.py, this config with
# the ratios found, for 200 iterations of fine-tuning. Dense models go on for as long as adaptation and fine-tuning take together.
_base_ = "./upernet_scenes_256.py"
max_iters = 200
train_cfg = dict(max_iters=max_iters, val_interval=max_iters)
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-2, by_epoch=False, begin=0, end=20),
    dict(type="PolyLR", eta_min=0.0, power=0.9, begin=20, end=max_iters, by_epoch=False),
]
default_hooks = dict(checkpoint=dict(interval=100))
