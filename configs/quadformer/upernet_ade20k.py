# Quadformer-S + UPerNet on ADE20K, crop 512: 40 % of the tokens of a ViT-S/16.
#
# The paper is about classification: that quadtrees serve dense prediction (every leaf painted over its cells) is ours.
# Optimiser, schedule, batch and auxiliary head are the Swin recipe (docs/recipes.md), the four levels from one stride
# those of MMSegmentation's ViT. Budget, pixel-blur scorer and drop path 0.1 are ours. Not trained by us.
_base_ = [
    "../_base_/models/upernet.py",
    "../_base_/datasets/ade20k.py",
    "../_base_/schedules/ade20k_upernet_160k.py",
    "../_base_/runtime/seg.py",
]
model = dict(
    backbone=dict(
        type="mmvit_plugins.Quadformer",
        arch="small",
        min_patch_size=16,
        max_patch_size=64,
        num_tokens=0.4,
        scorer=dict(type="mmvit_plugins.PixelBlurScorer"),
        drop_path_rate=0.1,
        out_indices=(0, 1, 2, 3),
    ),
    neck=dict(type="MultiLevelNeck", in_channels=[384, 384, 384, 384], out_channels=384, scales=[4, 2, 1, 0.5]),
    decode_head=dict(in_channels=[384, 384, 384, 384], num_classes=150),
    auxiliary_head=dict(in_channels=384, num_classes=150),
)
