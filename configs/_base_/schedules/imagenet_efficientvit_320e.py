# EfficientViT's ImageNet recipe (docs/recipes.md): AdamW, weight decay 0.1 but none on norms and biases; lr 2.5e-4 for each of
# 8 GPUs with 128 images, 2e-3 at batch 1024; 20 epochs of warm-up, then a cosine over 300 epochs to 0; gradients clipped by
# value at 2.
train_cfg = dict(by_epoch=True, max_epochs=320, val_interval=1)
val_cfg = dict()
test_cfg = dict()
optim_wrapper = dict(
    type="OptimWrapper",
    optimizer=dict(type="AdamW", lr=2e-3, weight_decay=0.1, eps=1e-8, betas=(0.9, 0.999)),
    paramwise_cfg=dict(norm_decay_mult=0.0, bias_decay_mult=0.0),
    clip_grad=dict(type="value", clip_value=2.0),
)
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-3, by_epoch=True, begin=0, end=20, convert_to_iter_based=True),
    dict(
        type="CosineAnnealingLR", eta_min=0.0, by_epoch=True, begin=20, end=320, T_max=300, convert_to_iter_based=True
    ),
]
auto_scale_lr = dict(enable=False, base_batch_size=1024)
