# FlatFormer-S for images (ours) + UPerNet on ADE20K, crop 512.
#
# The model is ours. Borrowed: optimiser, schedule, batch 8 x 2, auxiliary head and drop path 0.3 from the Swin recipe
# (docs/recipes.md). All patches are kept; upernet_ade20k_keep50.py keeps half of them.
#
# `checkpoint` is your own of in1k.py: nobody has published one. From scratch: --cfg-options model.backbone.init_cfg=None.
_base_ = [
    "../_base_/models/upernet.py",
    "../_base_/datasets/ade20k.py",
    "../_base_/schedules/ade20k_upernet_160k.py",
    "../_base_/runtime/seg.py",
]
model = dict(
    backbone=dict(
        type="mmvit_plugins.FlatFormer",
        arch="small",
        out_indices=(0, 1, 2, 3),
        drop_path_rate=0.3,
        init_cfg=dict(type="mmvit_plugins.OfficialPretrained", checkpoint="checkpoints/flatformer_small_in1k.pth"),
    ),
    decode_head=dict(in_channels=[64, 128, 320, 512], num_classes=150),
    auxiliary_head=dict(in_channels=320, num_classes=150),
)
