# Swin-B on ImageNet-1k at 224: in1k.py with the larger arch, drop path 0.5. Published: 83.5 % top-1 with 88 M parameters.
_base_ = "./in1k.py"
model = dict(backbone=dict(arch="base", drop_path_rate=0.5), head=dict(in_channels=1024))
