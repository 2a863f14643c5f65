# Context Cluster-Ti-plain on ImageNet-1k: Ti with one region everywhere and 4, 4, 2, 2 centres per side. Published: 73.8 %
# retrained.
_base_ = "./in1k.py"
model = dict(backbone=dict(arch="tiny_plain"), head=dict(in_channels=320))
