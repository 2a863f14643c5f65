# EfficientViT-B1 (MIT's) as timm implements it, for tools/benchmark.py beside ours; needs `pip install timm`. See resnet50.py.
_base_ = ["resnet50.py"]
model = dict(
    backbone=dict(
        _delete_=True, type="TIMMBackbone", model_name="efficientvit_b1", features_only=True, pretrained=False
    ),
    head=dict(in_channels=256),
)
