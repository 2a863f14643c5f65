# EfficientViT (MIT's) with its segmentation head; the defaults are the authors' for the b series on Cityscapes. The family's
# config adds arch, the head's in_channels, channels and depth; the data's config adds num_classes.
#
# SyncBN runs as plain BN in one process on a CPU; with several CPU processes tools/train.py converts it.
model = dict(
    _scope_="mmseg",
    type="EncoderDecoder",
    data_preprocessor=dict(
        type="SegDataPreProcessor",
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_val=0,
        seg_pad_val=255,
        size=(512, 512),
    ),
    backbone=dict(
        type="mmvit_plugins.EfficientViT",
        out_indices=(1, 2, 3),
        norm_cfg=dict(type="SyncBN", requires_grad=True),
    ),
    decode_head=dict(
        type="mmvit_plugins.EfficientViTSegHead",
        in_index=[0, 1, 2],
        block="mbconv",
        expand_ratio=4,
        final_expand=4,
        act="hswish",
        norm_cfg=dict(type="SyncBN", requires_grad=True),
        loss_decode=dict(type="CrossEntropyLoss", use_sigmoid=False, loss_weight=1.0),
    ),
    train_cfg=dict(),
    test_cfg=dict(mode="whole"),
)
