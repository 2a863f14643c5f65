# EfficientViT-B0 on ImageNet-1k at 224: b1_in1k.py with another size. timm states 71.41 % top-1 of the
# published weights.
# The authors give no recipe for B0; B1's without drop path is ours.
_base_ = "./b1_in1k.py"
model = dict(
    backbone=dict(arch="b0", drop_path_rate=0.0),
    head=dict(in_channels=128, widths=(1024, 1280)),
)
