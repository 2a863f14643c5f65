# STViT-B at 384: in1k_384.py with the larger arch. Published: 86.0 % top-1, 32.5 GFLOPs (docs/recipes.md).
_base_ = "./in1k_384.py"
model = dict(backbone=dict(arch="base"), neck=dict(in_channels=512))
load_from = "checkpoints/stvit_base_224_mmpretrain.pth"
