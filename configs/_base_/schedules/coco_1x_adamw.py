# "Swin recipe" for Mask R-CNN on COCO (docs/recipes.md): AdamW 1e-4, weight decay 0.05 but none on norms, warm-up 1000; 12
# epochs with drops at 8 and 11 (1x); 8 GPUs x 2 images.
train_cfg = dict(type="EpochBasedTrainLoop", max_epochs=12, val_interval=1)
val_cfg = dict(type="ValLoop")
test_cfg = dict(type="TestLoop")
optim_wrapper = dict(
    type="OptimWrapper",
    optimizer=dict(type="AdamW", lr=1e-4, betas=(0.9, 0.999), weight_decay=0.05),
    # Nor on layer scale, the one other vector that is no bias. Biases decay, as in the recipe.
    paramwise_cfg=dict(norm_decay_mult=0.0, bias_decay_mult=1.0, flat_decay_mult=0.0),
)
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-3, by_epoch=False, begin=0, end=1000),
    dict(type="MultiStepLR", by_epoch=True, begin=0, end=12, milestones=[8, 11], gamma=0.1),
]
auto_scale_lr = dict(enable=False, base_batch_size=16)
