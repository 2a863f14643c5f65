# Quadformer + FCN head on built-in scenes (128 x 128): quadtree of 32, 16 and 8 pixel patches, 64 tokens instead of 256.
# Needs no data and no weights. All numbers are ours; the model is small, so that a curve over budgets takes minutes:
# --cfg-options model.backbone.num_tokens=100; uniform_fcn_scenes.py is the baseline.
_base_ = [
    "../_base_/models/upernet.py",
    "../_base_/datasets/scenes_seg.py",
    "../_base_/schedules/scenes_seg.py",
    "../_base_/runtime/seg.py",
]
model = dict(
    data_preprocessor=dict(size=(128, 128)),
    backbone=dict(
        type="mmvit_plugins.Quadformer",
        arch=dict(embed_dims=64, depth=4, num_heads=2),
        min_patch_size=8,
        max_patch_size=32,
        num_tokens=64,
        out_indices=(1, 3),
    ),
    decode_head=dict(
        _delete_=True,
        type="FCNHead",
        in_channels=[64, 64],
        in_index=[0, 1],
        input_transform="resize_concat",
        channels=64,
        num_convs=1,
        concat_input=False,
        num_classes=6,
        norm_cfg=dict(type="BN"),
        align_corners=False,
        loss_decode=dict(type="CrossEntropyLoss", use_sigmoid=False, loss_weight=1.0),
    ),
    auxiliary_head=dict(in_channels=64, in_index=0, channels=32, num_classes=6, norm_cfg=dict(type="BN")),
)
default_hooks = dict(logger=dict(interval=65), checkpoint=dict(interval=325))
