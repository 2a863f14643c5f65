# Swin's ImageNet recipe (docs/recipes.md): AdamW 1e-3 at batch 1024, weight decay 0.05 but none on norms, biases, vectors and
# position tables, warm-up 20 epochs, cosine to 1e-5 over 300 epochs, gradient norm at most 5.
train_cfg = dict(by_epoch=True, max_epochs=300, val_interval=1)
val_cfg = dict()
test_cfg = dict()
optim_wrapper = dict(
    type="OptimWrapper",
    optimizer=dict(type="AdamW", lr=1e-3, weight_decay=0.05, eps=1e-8, betas=(0.9, 0.999)),
    paramwise_cfg=dict(
        norm_decay_mult=0.0,
        bias_decay_mult=0.0,
        flat_decay_mult=0.0,
        custom_keys=dict(relative_position_bias_table=dict(decay_mult=0.0)),
    ),
    clip_grad=dict(max_norm=5.0),
)
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-3, by_epoch=True, begin=0, end=20, convert_to_iter_based=True),
    dict(type="CosineAnnealingLR", eta_min=1e-5, by_epoch=True, begin=20, end=300, T_max=280),
]
auto_scale_lr = dict(enable=False, base_batch_size=1024)
