# STViT-L on ImageNet-1k at 224: in1k.py with the largest arch and drop path 0.6 (docs/recipes.md). Published: 85.3 % top-1, 95 M
# parameters, 15.6 GFLOPs. The authors advise drop path 0.4 for the first 260 epochs and 0.6 for the last 40: train with
# --cfg-options model.backbone.drop_path_rate=0.4, stop after 260, and go on with --resume.
_base_ = "./in1k.py"
model = dict(backbone=dict(arch="large", drop_path_rate=0.6), neck=dict(in_channels=640))
