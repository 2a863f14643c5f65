# MiT-B0 (SegFormer's backbone) for tools/benchmark.py: MMSegmentation's own, nothing of ours; see resnet50.py.
_base_ = ["resnet50.py"]
model = dict(
    backbone=dict(
        _delete_=True,
        type="mmseg.MixVisionTransformer",
        embed_dims=32,
        num_layers=[2, 2, 2, 2],
        num_heads=[1, 2, 5, 8],
        sr_ratios=[8, 4, 2, 1],
        out_indices=(0, 1, 2, 3),
    ),
    head=dict(in_channels=256),
)
