# Context Cluster-Ti2 on ImageNet-1k: Ti with regions 7, 7, 1, 1 and centres 4, 2, 7, 4 per side. Published: 71.7 %.
_base_ = "./in1k.py"
model = dict(backbone=dict(arch="tiny2"), head=dict(in_channels=320))
