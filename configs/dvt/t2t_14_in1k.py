# DVT on T2T-ViT-14 (Performer token layers): 8 x 64, lr 5e-4, decay 0.05 are the authors'.
_base_ = "./in1k.py"
model = dict(backbone=dict(arch="t2t_vit_14"), head=dict(in_channels=384))
