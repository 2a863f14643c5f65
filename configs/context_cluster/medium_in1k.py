# Context Cluster-M on ImageNet-1k: in1k.py with the larger arch. Published: 81.0 %, 81.2 % retrained; 29.29 M parameters.
_base_ = "./in1k.py"
model = dict(backbone=dict(arch="medium"))
