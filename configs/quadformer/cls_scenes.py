# Quadformer classifying the main object of built-in scenes (128 x 128): quadtree of 32, 16 and 8 pixel patches, 64 tokens
# instead of 256. Needs no data and no weights. All numbers are ours.
_base_ = [
    "../_base_/models/image_classifier.py",
    "../_base_/datasets/scenes_cls.py",
    "../_base_/schedules/scenes_cls.py",
    "../_base_/runtime/cls.py",
]
model = dict(
    data_preprocessor=dict(num_classes=4),
    backbone=dict(
        type="mmvit_plugins.Quadformer",
        arch=dict(embed_dims=96, depth=4, num_heads=3),
        min_patch_size=8,
        max_patch_size=32,
        num_tokens=64,
        out_type="cls_token",
        out_indices=(3,),
    ),
    head=dict(in_channels=96, num_classes=4, topk=(1,)),
    train_cfg=None,
)
default_hooks = dict(logger=dict(interval=25), checkpoint=dict(interval=2))
