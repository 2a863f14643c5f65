# An image classifier trained with label smoothing 0.1 and, chosen with equal chance for each batch, mixup 0.8 or cutmix
# 1.0 (docs/recipes.md). The family's config adds backbone, neck and the head's in_channels.
model = dict(
    _scope_="mmpretrain",
    type="ImageClassifier",
    data_preprocessor=dict(
        type="ClsDataPreprocessor",
        num_classes=1000,
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        to_rgb=True,
    ),
    head=dict(
        type="LinearClsHead",
        num_classes=1000,
        init_cfg=dict(type="TruncNormal", layer="Linear", std=0.02, bias=0.0),
        loss=dict(type="LabelSmoothLoss", label_smooth_val=0.1, mode="original"),
        cal_acc=False,
    ),
    train_cfg=dict(augments=[dict(type="Mixup", alpha=0.8), dict(type="CutMix", alpha=1.0)]),
)
