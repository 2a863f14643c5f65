# EfficientViT's segmentation models. AdamW and the cosine are the paper's, the numbers are ours: lr 2e-4 as in PVT's recipe for
# Semantic FPN (docs/recipes.md), higher than the Swin recipe's 6e-5 because the models are small and have batch norms; 160k
# iterations, warm-up 1500, weight decay 0.01 (none on norms) and 8 GPUs x 2 images from the Swin recipe.
train_cfg = dict(type="IterBasedTrainLoop", max_iters=160000, val_interval=16000)
val_cfg = dict(type="ValLoop")
test_cfg = dict(type="TestLoop")
optim_wrapper = dict(
    type="OptimWrapper",
    optimizer=dict(type="AdamW", lr=2e-4, betas=(0.9, 0.999), weight_decay=0.01),
    paramwise_cfg=dict(norm_decay_mult=0.0, bias_decay_mult=0.0),
)
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-6, by_epoch=False, begin=0, end=1500),
    dict(type="CosineAnnealingLR", eta_min=0.0, by_epoch=False, begin=1500, end=160000, T_max=158500),
]
auto_scale_lr = dict(enable=False, base_batch_size=16)
