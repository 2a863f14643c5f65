# STViT-L at 384: in1k_384.py with the largest arch. Published: 86.4 % top-1, 49.7 GFLOPs (docs/recipes.md).
_base_ = "./in1k_384.py"
model = dict(backbone=dict(arch="large"), neck=dict(in_channels=640))
load_from = "checkpoints/stvit_large_224_mmpretrain.pth"
