# ToMe on DeiT-Ti: in1k.py with the smaller arch. Published, V100: off 71.8 % top-1 at 2558 images/s; trained with r = 13:
# 71.27 % at 3980 images/s.
_base_ = "./in1k.py"
model = dict(backbone=dict(arch="deit_tiny"), head=dict(in_channels=192))
