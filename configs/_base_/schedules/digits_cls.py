# A minute or two on one CPU core. Ours: from scratch.
train_cfg = dict(by_epoch=True, max_epochs=40, val_interval=10)
val_cfg = dict()
test_cfg = dict()
optim_wrapper = dict(
    type="OptimWrapper",
    optimizer=dict(type="AdamW", lr=2e-3, betas=(0.9, 0.999), weight_decay=0.05),
    paramwise_cfg=dict(norm_decay_mult=0.0, bias_decay_mult=0.0, flat_decay_mult=0.0),
    clip_grad=dict(max_norm=5.0, norm_type=2),
)
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-2, by_epoch=True, begin=0, end=3, convert_to_iter_based=True),
    dict(type="CosineAnnealingLR", eta_min=0.0, by_epoch=True, begin=3, end=40, T_max=37, convert_to_iter_based=True),
]
auto_scale_lr = dict(enable=False, base_batch_size=50)
randomness = dict(seed=0)
