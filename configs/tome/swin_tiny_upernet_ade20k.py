# Swin-T with token merging in its windows + UPerNet on ADE20K, crop 512: the Swin recipe (docs/recipes.md: AdamW 6e-5, 160k,
# 8 x 2, drop path 0.3) with a share of 0.4 of each window merged for the feed-forward networks of stages 1 to 3 (ours).
_base_ = [
    "../_base_/models/upernet.py",
    "../_base_/datasets/ade20k.py",
    "../_base_/schedules/ade20k_upernet_160k.py",
    "../_base_/runtime/seg.py",
]
model = dict(
    backbone=dict(
        type="mmvit_plugins.ToMeSwin",
        arch="tiny",
        r=(0.4, 0.4, 0.4, 0),
        out_indices=(0, 1, 2, 3),
        drop_path_rate=0.3,
        init_cfg=dict(
            type="mmvit_plugins.OfficialPretrained", checkpoint="checkpoints/swin_tiny_patch4_window7_224.pth"
        ),
    ),
    decode_head=dict(in_channels=[96, 192, 384, 768], num_classes=150),
    auxiliary_head=dict(in_channels=384, num_classes=150),
)
optim_wrapper = dict(paramwise_cfg=dict(custom_keys={"relative_position_bias_table": dict(decay_mult=0.0)}))
