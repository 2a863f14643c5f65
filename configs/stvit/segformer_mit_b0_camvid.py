# MMSegmentation's own MiT-B0 + SegFormer head on CamVid, the yardstick for upernet_camvid.py: same data, crop, schedule
# and seed. Architecture numbers are SegFormer-B0's as MMSegmentation ships them; from scratch, as ours.
_base_ = ["../_base_/datasets/camvid.py", "../_base_/schedules/camvid.py", "../_base_/runtime/seg.py"]
class_weight = [0.80, 0.61, 4.79, 0.48, 2.21, 1.25, 4.50, 4.57, 1.83, 5.43, 6.27]  # of _base_/datasets/camvid.py
model = dict(
    type="EncoderDecoder",
    data_preprocessor=dict(
        type="SegDataPreProcessor",
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_val=0,
        seg_pad_val=255,
        size=(256, 256),
    ),
    backbone=dict(
        type="MixVisionTransformer",
        in_channels=3,
        embed_dims=32,
        num_stages=4,
        num_layers=[2, 2, 2, 2],
        num_heads=[1, 2, 5, 8],
        patch_sizes=[7, 3, 3, 3],
        sr_ratios=[8, 4, 2, 1],
        out_indices=(0, 1, 2, 3),
        mlp_ratio=4,
        qkv_bias=True,
        drop_rate=0.0,
        attn_drop_rate=0.0,
        drop_path_rate=0.1,
    ),
    decode_head=dict(
        type="SegformerHead",
        in_channels=[32, 64, 160, 256],
        in_index=[0, 1, 2, 3],
        channels=256,
        dropout_ratio=0.1,
        num_classes=11,
        norm_cfg=dict(type="BN", requires_grad=True),
        align_corners=False,
        loss_decode=dict(type="mmvit_plugins.WeightedCrossEntropyLoss", class_weight=class_weight),
    ),
    train_cfg=dict(),
    test_cfg=dict(mode="whole"),
)
default_hooks = dict(checkpoint=dict(interval=400))
