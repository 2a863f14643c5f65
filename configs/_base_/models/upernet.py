# UPerNet: pyramid pooling and a feature pyramid over four stages, with an FCN head on stage 3 as auxiliary loss.
# Widths, dropout and the auxiliary weight 0.4 are the Swin recipe's (MMSegmentation). The family's config adds the
# backbone and the heads' in_channels; the data's config adds num_classes.
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
    decode_head=dict(
        type="UPerHead",
        in_index=[0, 1, 2, 3],
        pool_scales=(1, 2, 3, 6),
        channels=512,
        dropout_ratio=0.1,
        norm_cfg=dict(type="SyncBN", requires_grad=True),
        align_corners=False,
        loss_decode=dict(type="CrossEntropyLoss", use_sigmoid=False, loss_weight=1.0),
    ),
    auxiliary_head=dict(
        type="FCNHead",
        in_index=2,
        channels=256,
        num_convs=1,
        concat_input=False,
        dropout_ratio=0.1,
        norm_cfg=dict(type="SyncBN", requires_grad=True),
        align_corners=False,
        loss_decode=dict(type="CrossEntropyLoss", use_sigmoid=False, loss_weight=0.4),
    ),
    train_cfg=dict(),
    test_cfg=dict(mode="whole"),
)
