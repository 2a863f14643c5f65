# DVT's ImageNet recipe as far as its sources say (docs/dvt.md): AdamW, warm-up 20 epochs, cosine over 300, an average of the
# weights (0.99996). Learning rate and decay are those of T2T-ViT-14: 5e-4 at 8 x 64, 0.05. No decay on norms, biases and
# vectors, and the end of the cosine (1e-5) are T2T-ViT's.
train_cfg = dict(by_epoch=True, max_epochs=300, val_interval=1)
val_cfg = dict()
test_cfg = dict()
optim_wrapper = dict(
    type="OptimWrapper",
    optimizer=dict(type="AdamW", lr=5e-4, weight_decay=0.05, eps=1e-8, betas=(0.9, 0.999)),
    paramwise_cfg=dict(norm_decay_mult=0.0, bias_decay_mult=0.0, flat_decay_mult=0.0),
)
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-3, by_epoch=True, begin=0, end=20, convert_to_iter_based=True),
    dict(type="CosineAnnealingLR", eta_min=1e-5, by_epoch=True, begin=20, end=300, T_max=280),
]
auto_scale_lr = dict(enable=False, base_batch_size=512)
