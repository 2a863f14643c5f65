# DVT on T2T-ViT-12 (Performer token layers): 8 x 128, lr 2e-3, decay 0.03 are the authors'.
_base_ = "./in1k.py"
model = dict(backbone=dict(arch="t2t_vit_12"), head=dict(in_channels=256))
train_dataloader = dict(batch_size=128)
optim_wrapper = dict(optimizer=dict(lr=2e-3, weight_decay=0.03))
auto_scale_lr = dict(base_batch_size=1024)
