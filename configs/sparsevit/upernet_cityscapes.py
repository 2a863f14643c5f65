# Swin-T (SparseViT without pruning) + UPerNet on Cityscapes, crop 1024: the dense starting point of the two files beside it.
# The paper has Cityscapes, the repository does not. Borrowed: optimiser, 160k iterations and drop path of the Swin recipe for
# ADE20K; sliding windows of 1024 with stride 768 as SegFormer tests. Ours: the combination, and batch 8 x 1.
_base_ = [
    "../_base_/models/upernet.py",
    "../_base_/datasets/cityscapes_1024.py",
    "../_base_/schedules/cityscapes_upernet_160k.py",
    "../_base_/runtime/seg.py",
]
model = dict(
    data_preprocessor=dict(size=(1024, 1024)),
    backbone=dict(
        type="mmvit_plugins.SparseViT",
        arch="tiny",
        out_indices=(0, 1, 2, 3),
        drop_path_rate=0.3,
        init_cfg=dict(type="mmvit_plugins.OfficialPretrained", checkpoint="checkpoints/swin_tiny_224.pth"),
    ),
    decode_head=dict(in_channels=[96, 192, 384, 768], num_classes=19),
    auxiliary_head=dict(in_channels=384, num_classes=19),
    test_cfg=dict(mode="slide", crop_size=(1024, 1024), stride=(768, 768)),
)
optim_wrapper = dict(
    paramwise_cfg=dict(custom_keys=dict(relative_position_bias_table=dict(decay_mult=0.0))),
)
