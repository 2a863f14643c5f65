# Quadformer-B: as in1k.py with the width of ViT-B; drop path 0.2 is ours.
_base_ = "./in1k.py"
model = dict(backbone=dict(arch="base", drop_path_rate=0.2), head=dict(in_channels=768))
