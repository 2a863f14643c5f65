# One schedule for every CamVid config, so that models can be compared: from scratch, no pretrained weights. Ours.
# AdamW and the polynomial fall to zero follow the Swin recipe (docs/recipes.md); lr and weight decay are higher than its 6e-5
# and 0.01, which fine-tune pretrained weights.
max_iters = 4000
train_cfg = dict(type="IterBasedTrainLoop", max_iters=max_iters, val_interval=400)
val_cfg = dict(type="ValLoop")
test_cfg = dict(type="TestLoop")
optim_wrapper = dict(
    type="OptimWrapper",
    optimizer=dict(type="AdamW", lr=1e-3, betas=(0.9, 0.999), weight_decay=0.05),
    paramwise_cfg=dict(norm_decay_mult=0.0, bias_decay_mult=0.0, flat_decay_mult=0.0),
    clip_grad=dict(max_norm=5.0, norm_type=2),
)
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-3, by_epoch=False, begin=0, end=200),
    dict(type="PolyLR", eta_min=0.0, power=0.9, begin=200, end=max_iters, by_epoch=False),
]
auto_scale_lr = dict(enable=False, base_batch_size=4)
randomness = dict(seed=0)
