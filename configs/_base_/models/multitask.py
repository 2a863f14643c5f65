# One backbone and a small FPN head for each task (MMSegmentation's FPNHead on all four maps). Ours: the head and its
# width. The family's config adds the backbone and the head's in_channels; the data set's file adds the tasks.
model = dict(
    type="mmvit_plugins.MultiTaskModel",
    data_preprocessor=dict(
        type="mmvit_plugins.MultiTaskDataPreprocessor",
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_size_divisor=32,
    ),
    head=dict(
        type="mmseg.FPNHead",
        in_index=[0, 1, 2, 3],
        feature_strides=[4, 8, 16, 32],
        channels=128,
        dropout_ratio=0.1,
        norm_cfg=dict(type="SyncBN", requires_grad=True),
        align_corners=False,
    ),
)
