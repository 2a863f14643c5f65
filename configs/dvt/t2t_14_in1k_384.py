# DVT on T2T-ViT-14 at 384: exits of 12 x 12, 16 x 16 and 24 x 24 tokens, the grids that the soft splits of 224 (strides 8, 6,
# 4) give. Ours, as in1k_384.py.
_base_ = "./in1k_384.py"
model = dict(backbone=dict(arch="t2t_vit_14", token_grids=(12, 16, 24)), head=dict(in_channels=384))
load_from = "checkpoints/dvt_t2t_vit_14_224_mmpretrain.pth"
