# A few minutes on two CPU cores. Ours: from scratch, six passes over 800 scenes.
train_cfg = dict(type="EpochBasedTrainLoop", max_epochs=6, val_interval=2)
val_cfg = dict(type="ValLoop")
test_cfg = dict(type="TestLoop")
optim_wrapper = dict(
    type="OptimWrapper",
    optimizer=dict(type="AdamW", lr=1e-3, betas=(0.9, 0.999), weight_decay=0.05),
    paramwise_cfg=dict(norm_decay_mult=0.0, bias_decay_mult=0.0, flat_decay_mult=0.0),
    clip_grad=dict(max_norm=5.0, norm_type=2),
)
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-2, by_epoch=False, begin=0, end=50),
    dict(type="CosineAnnealingLR", eta_min=0.0, by_epoch=True, begin=0, end=6, T_max=6, convert_to_iter_based=True),
]
auto_scale_lr = dict(enable=False, base_batch_size=4)
randomness = dict(seed=0)
