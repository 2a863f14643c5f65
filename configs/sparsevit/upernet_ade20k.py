# Swin-T (SparseViT without pruning) + UPerNet on ADE20K, crop 512: the Swin recipe (docs/recipes.md), drop path 0.3. Published
# for Swin-T: 44.51 mIoU single scale (not trained by us). SparseViT released nothing for ADE20K.
# To prune, set model.backbone.pruning_ratios, after an adaptation as in upernet_cityscapes_adapt.py.
_base_ = [
    "../_base_/models/upernet.py",
    "../_base_/datasets/ade20k.py",
    "../_base_/schedules/ade20k_upernet_160k.py",
    "../_base_/runtime/seg.py",
]
model = dict(
    backbone=dict(
        type="mmvit_plugins.SparseViT",
        arch="tiny",
        out_indices=(0, 1, 2, 3),
        drop_path_rate=0.3,
        init_cfg=dict(type="mmvit_plugins.OfficialPretrained", checkpoint="checkpoints/swin_tiny_224.pth"),
    ),
    decode_head=dict(in_channels=[96, 192, 384, 768], num_classes=150),
    auxiliary_head=dict(in_channels=384, num_classes=150),
)
optim_wrapper = dict(
    paramwise_cfg=dict(custom_keys=dict(relative_position_bias_table=dict(decay_mult=0.0))),
)
