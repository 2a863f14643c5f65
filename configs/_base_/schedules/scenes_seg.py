# About two minutes on two CPU cores for the 1 M-parameter STViT. Ours: trained from scratch, one-cycle-like warm-up and
# polynomial fall.
max_iters = 650
train_cfg = dict(type="IterBasedTrainLoop", max_iters=max_iters, val_interval=325)
val_cfg = dict(type="ValLoop")
test_cfg = dict(type="TestLoop")
optim_wrapper = dict(
    type="OptimWrapper",
    optimizer=dict(type="AdamW", lr=2e-3, betas=(0.9, 0.999), weight_decay=0.05),
    paramwise_cfg=dict(norm_decay_mult=0.0, bias_decay_mult=0.0, flat_decay_mult=0.0),
    clip_grad=dict(max_norm=5.0, norm_type=2),
)
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-2, by_epoch=False, begin=0, end=30),
    dict(type="PolyLR", eta_min=0.0, power=0.9, begin=30, end=max_iters, by_epoch=False),
]
auto_scale_lr = dict(enable=False, base_batch_size=8)
randomness = dict(seed=0)
