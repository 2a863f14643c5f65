# MSViT + FCN head on built-in scenes (128 x 128): fine patches of 8 pixels, coarse ones of 16, half of the coarse patches
# to stay coarse. Needs no data and no weights. All numbers are ours.
#
# The gate's loss is collected by BackboneLossEncoderDecoder, otherwise MMSegmentation's EncoderDecoder.
_base_ = [
    "../_base_/models/upernet.py",
    "../_base_/datasets/scenes_seg.py",
    "../_base_/schedules/scenes_seg.py",
    "../_base_/runtime/seg.py",
]
model = dict(
    type="mmvit_plugins.BackboneLossEncoderDecoder",
    data_preprocessor=dict(size=(128, 128)),
    backbone=dict(
        type="mmvit_plugins.MSViT",
        arch=dict(embed_dims=64, depth=4, num_heads=2),
        img_size=128,
        patch_size=8,
        ratio=2,
        gate=dict(type="mmvit_plugins.PatchGate", hidden=32),
        gate_loss=dict(type="mmvit_plugins.BatchShapingLoss", target=0.5, grid=(8, 8), loss_weight=4.0),
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
optim_wrapper = dict(paramwise_cfg=dict(custom_keys={"gate_loss": dict(lr_mult=10.0, decay_mult=0.0)}))
default_hooks = dict(logger=dict(interval=65), checkpoint=dict(interval=325))
