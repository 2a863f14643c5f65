# ToMe on DeiT-S + UPerNet on ADE20K, crop 512.
#
# No dense code or configs were published for ToMe. Borrowed: optimiser, schedule, batch 8 x 2 and auxiliary head of the Swin
# recipe (docs/recipes.md); the pyramid from maps of blocks 4, 6, 8 and 12 as MMSegmentation's MAE and BEiT configs do. Ours:
# r, the combination, drop path 0.1, no layer-wise decay.
# r = 40: 1025 tokens of a crop fall to 545. Merged tokens are copied back to their places before each map.
#
# `checkpoint` is DeiT's file, to be downloaded by you (README); positions are resized to the image in each pass.
_base_ = [
    "../_base_/models/upernet.py",
    "../_base_/datasets/ade20k.py",
    "../_base_/schedules/ade20k_upernet_160k.py",
    "../_base_/runtime/seg.py",
]
model = dict(
    backbone=dict(
        type="mmvit_plugins.ToMe",
        arch="deit_small",
        r=40,
        out_type="featmap",
        out_indices=(3, 5, 7, 11),
        drop_path_rate=0.1,
        init_cfg=dict(type="mmvit_plugins.OfficialPretrained", checkpoint="checkpoints/deit_small_patch16_224.pth"),
    ),
    neck=dict(type="Feature2Pyramid", embed_dim=384, rescales=[4, 2, 1, 0.5]),
    decode_head=dict(in_channels=[384, 384, 384, 384], num_classes=150),
    auxiliary_head=dict(in_channels=384, num_classes=150),
)
optim_wrapper = dict(
    paramwise_cfg=dict(custom_keys={".cls_token": dict(decay_mult=0.0), ".pos_embed": dict(decay_mult=0.0)})
)
