# Swin-T for tools/benchmark.py: MMPretrain's own backbone, nothing of ours; see resnet50.py.
_base_ = ["resnet50.py"]
model = dict(
    backbone=dict(
        _delete_=True, type="SwinTransformer", arch="tiny", img_size=224, out_indices=(3,), pad_small_map=True
    ),
    head=dict(in_channels=768),
)
