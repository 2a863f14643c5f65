# STViT's ImageNet recipe (docs/recipes.md): AdamW, weight decay 0.05 but none on norms, biases and vectors; lr 5e-4 x
# batch / 512 = 1e-3 at batch 1024; warm-up 5 epochs from 1e-6, cosine over 300 epochs to 1e-5, 10 epochs more at 1e-5; no
# gradient clipping. timm's cosine starts counting before the warm-up, this one after it: at most 3 % between the two.
# The authors keep an average of the weights (0.99996) but evaluate and publish the raw ones, so there is none here.
train_cfg = dict(by_epoch=True, max_epochs=310, val_interval=1)
val_cfg = dict()
test_cfg = dict()
optim_wrapper = dict(
    type="OptimWrapper",
    optimizer=dict(type="AdamW", lr=1e-3, weight_decay=0.05, eps=1e-8, betas=(0.9, 0.999)),
    paramwise_cfg=dict(norm_decay_mult=0.0, bias_decay_mult=0.0, flat_decay_mult=0.0),
)
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-3, by_epoch=True, begin=0, end=5, convert_to_iter_based=True),
    dict(type="CosineAnnealingLR", eta_min=1e-5, by_epoch=True, begin=5, end=300, T_max=295),
]
auto_scale_lr = dict(enable=False, base_batch_size=1024)
