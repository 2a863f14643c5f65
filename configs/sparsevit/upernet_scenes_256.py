# Scenes of 256 x 256 pixels (64 x 64 tokens, 256 windows in stage 1) for the question sparse and high resolution or dense and
# low resolution; docs/search.md has the answer. Dense here; upernet_scenes_256_{adapt,finetune}.py are SparseViT's steps,
# upernet_scenes_256_at_{192,128}.py see the same scenes smaller. tools/run_sparsity_chain.py trains and compares them; it starts
# the dense ones from the weights of upernet_scenes.py (--cfg-options load_from=FILE), which was trained on small scenes.
#
# The search sees the validation scenes, the figures are those of the test scenes. All numbers are ours.
_base_ = "./upernet_scenes.py"
size = (256, 256)
max_iters = 600
model = dict(data_preprocessor=dict(size=size))
train_dataloader = dict(batch_size=4, dataset=dict(size=size))
val_dataloader = dict(batch_size=10, dataset=dict(size=size))
test_dataloader = dict(batch_size=10, dataset=dict(split="test", num_scenes=200, size=size))
train_cfg = dict(max_iters=max_iters, val_interval=max_iters)
optim_wrapper = dict(optimizer=dict(lr=1e-3))
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-2, by_epoch=False, begin=0, end=20),
    dict(type="PolyLR", eta_min=0.0, power=0.9, begin=20, end=max_iters, by_epoch=False),
]
default_hooks = dict(logger=dict(interval=25), checkpoint=dict(interval=200))
auto_scale_lr = dict(base_batch_size=4)
