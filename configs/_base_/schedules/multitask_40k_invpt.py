# InvPT's schedule for ViT-L/16: Adam 2e-5, weight decay 1e-6, polynomial fall of power 0.9, 40k iterations, 3 GPUs x 2
# images, no warm-up.
train_cfg = dict(type="IterBasedTrainLoop", max_iters=40000, val_interval=8000)
val_cfg = dict(type="ValLoop")
test_cfg = dict(type="TestLoop")
optim_wrapper = dict(type="OptimWrapper", optimizer=dict(type="Adam", lr=2e-5, weight_decay=1e-6))
param_scheduler = [dict(type="PolyLR", eta_min=0.0, power=0.9, begin=0, end=40000, by_epoch=False)]
auto_scale_lr = dict(enable=False, base_batch_size=6)
