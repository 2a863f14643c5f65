# MSViT-S + UPerNet on ADE20K, crop 512: half of the 32-pixel patches coarse, a coarse token painted over its 2 x 2 cells.
#
# The paper fine-tunes for segmentation too, but its settings were not released. Optimiser, schedule, batch and auxiliary head
# are the Swin recipe (docs/recipes.md), the four levels from one stride those of MMSegmentation's ViT; the gate's settings
# those of in1k.py. Not trained by us.
_base_ = [
    "../_base_/models/upernet.py",
    "../_base_/datasets/ade20k.py",
    "../_base_/schedules/ade20k_upernet_160k.py",
    "../_base_/runtime/seg.py",
]
model = dict(
    type="mmvit_plugins.BackboneLossEncoderDecoder",
    backbone=dict(
        type="mmvit_plugins.MSViT",
        arch="small",
        img_size=512,
        patch_size=16,
        ratio=2,
        gate=dict(type="mmvit_plugins.PatchGate"),
        gate_loss=dict(type="mmvit_plugins.BatchShapingLoss", target=0.5, grid=(16, 16), loss_weight=4.0),
        drop_path_rate=0.1,
        out_indices=(0, 1, 2, 3),
        init_cfg=dict(type="Pretrained", checkpoint="checkpoints/deit_small.pth", prefix="backbone."),
    ),
    neck=dict(type="MultiLevelNeck", in_channels=[384, 384, 384, 384], out_channels=384, scales=[4, 2, 1, 0.5]),
    decode_head=dict(in_channels=[384, 384, 384, 384], num_classes=150),
    auxiliary_head=dict(in_channels=384, num_classes=150),
)
optim_wrapper = dict(paramwise_cfg=dict(custom_keys={"gate_loss": dict(lr_mult=100.0, decay_mult=0.0)}))
