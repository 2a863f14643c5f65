# ToMe on ViT-B/16: in1k.py with the larger arch and r = 16. Published for the supervised ViT-B/16, off the shelf, V100:
# 84.57 % top-1 at 309 images/s without, 82.60 % at 511 images/s with r = 16. Those weights are timm's (augreg), which
# normalise images by 0.5 and 0.5; for them add --cfg-options model.data_preprocessor.mean=[127.5,127.5,127.5]
# model.data_preprocessor.std=[127.5,127.5,127.5].
_base_ = "./in1k.py"
model = dict(backbone=dict(arch="vit_base", r=16), head=dict(in_channels=768))
