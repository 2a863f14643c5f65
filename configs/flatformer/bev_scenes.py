# Point clouds of the built-in scenes, seen from above: pillars + FlatFormer's encoder + convolutions + UPerHead. Needs no data
# and no weights, and trains in minutes on two CPU cores.
#
# The order of parts is FlatFormer's (pillars, encoder, 2-D network, head). All numbers are ours: pillars of 13 cm, 48 x 48 of
# them, one block of four layers in groups of 69 pillars that follow windows of 9 x 9 (the defaults of the authors' class).
# Six of seven judged cells are ground: the loss is weighted by class, or the model takes long to call anything an object.
_base_ = ["../_base_/datasets/scenes_bev.py", "../_base_/schedules/scenes_seg.py", "../_base_/runtime/seg.py"]
model = dict(
    _scope_="mmseg",
    type="EncoderDecoder",
    # Points need no normalising and no padding: this one only moves them to the device.
    data_preprocessor=dict(type="BaseDataPreprocessor"),
    backbone=dict(
        type="mmvit_plugins.PillarBackbone",
        pillars=dict(
            type="mmvit_plugins.PillarFeatures",
            point_cloud_range={{_base_.point_cloud_range}},
            grid=(48, 48),
            out_channels=64,
        ),
        encoder=dict(
            type="mmvit_plugins.FlatFormerEncoder",
            in_channels=64,
            num_heads=4,
            num_blocks=1,
            window_shape=(9, 9, 1),
            group_size=69,
            sparse_shape=(48, 48, 1),
        ),
        dims=(32, 64, 96),
        depths=(2, 2, 2),
    ),
    decode_head=dict(
        type="UPerHead",
        in_channels=[32, 64, 96],
        in_index=[0, 1, 2],
        pool_scales=(1, 2, 3, 6),
        channels=32,
        dropout_ratio=0.1,
        num_classes=5,
        norm_cfg=dict(type="BN"),
        align_corners=False,
        loss_decode=dict(type="mmvit_plugins.WeightedCrossEntropyLoss", class_weight=(0.5, 2.5, 2.5, 2.5, 2.5)),
    ),
    train_cfg=dict(),
    test_cfg=dict(mode="whole"),
)
max_iters = 600
train_cfg = dict(max_iters=max_iters, val_interval=200)
# Half the learning rate of the other scenes configs: the encoder's layers have their norms after the skips.
optim_wrapper = dict(optimizer=dict(lr=1e-3))
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-2, by_epoch=False, begin=0, end=30),
    dict(type="PolyLR", eta_min=0.0, power=0.9, begin=30, end=max_iters, by_epoch=False),
]
default_hooks = dict(logger=dict(interval=20), checkpoint=dict(interval=200))
