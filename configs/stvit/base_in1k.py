# STViT-B on ImageNet-1k at 224: in1k.py with the larger arch and its drop path 0.4 (docs/recipes.md). Published: 84.8 % top-1,
# 52 M parameters, 9.9 GFLOPs.
_base_ = "./in1k.py"
model = dict(backbone=dict(arch="base", drop_path_rate=0.4), neck=dict(in_channels=512))
