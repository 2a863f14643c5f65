# STViT's fine-tuning recipe for 384 pixels (docs/recipes.md): 30 epochs, constant lr 5e-6, weight decay 1e-8, no warm-up. The
# batch (8 GPUs x 64) is ours: docs/recipes.md has none.
train_cfg = dict(by_epoch=True, max_epochs=30, val_interval=1)
val_cfg = dict()
test_cfg = dict()
optim_wrapper = dict(
    type="OptimWrapper",
    optimizer=dict(type="AdamW", lr=5e-6, weight_decay=1e-8, eps=1e-8, betas=(0.9, 0.999)),
    paramwise_cfg=dict(norm_decay_mult=0.0, bias_decay_mult=0.0, flat_decay_mult=0.0),
)
param_scheduler = []
auto_scale_lr = dict(enable=False, base_batch_size=512)
