# 40k iterations and polynomial fall of power 0.9: InvPT. AdamW, its rate for hierarchical backbones, the warm-up and 8
# images in a step (2 GPUs x 4) are ours; InvPT's own Adam for ViT-L is in multitask_40k_invpt.py.
train_cfg = dict(type="IterBasedTrainLoop", max_iters=40000, val_interval=8000)
val_cfg = dict(type="ValLoop")
test_cfg = dict(type="TestLoop")
optim_wrapper = dict(
    type="OptimWrapper",
    optimizer=dict(type="AdamW", lr=1e-4, betas=(0.9, 0.999), weight_decay=0.01),
    paramwise_cfg=dict(norm_decay_mult=0.0, bias_decay_mult=1.0, flat_decay_mult=0.0),
)
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-3, by_epoch=False, begin=0, end=1000),
    dict(type="PolyLR", eta_min=0.0, power=0.9, begin=1000, end=40000, by_epoch=False),
]
auto_scale_lr = dict(enable=False, base_batch_size=8)
