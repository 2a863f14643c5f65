# "Swin recipe" for UPerNet on ADE20K (docs/recipes.md): AdamW 6e-5, weight decay 0.01 but none on norms, 160k iterations,
# warm-up 1500, linear fall to 0; 8 GPUs x 2 images.
train_cfg = dict(type="IterBasedTrainLoop", max_iters=160000, val_interval=16000)
val_cfg = dict(type="ValLoop")
test_cfg = dict(type="TestLoop")
optim_wrapper = dict(
    type="OptimWrapper",
    optimizer=dict(type="AdamW", lr=6e-5, betas=(0.9, 0.999), weight_decay=0.01),
    # Nor on layer scale, the one other vector that is no bias. Biases decay, as in the recipe.
    paramwise_cfg=dict(norm_decay_mult=0.0, bias_decay_mult=1.0, flat_decay_mult=0.0),
)
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-6, by_epoch=False, begin=0, end=1500),
    dict(type="PolyLR", eta_min=0.0, power=1.0, begin=1500, end=160000, by_epoch=False),
]
auto_scale_lr = dict(enable=False, base_batch_size=16)
