# FlatFormer-S for images (ours) + UPerNet on Cityscapes, crop 1024, with dropped patches: the high resolution the method is for.
#
# Borrowed: optimiser and 160k iterations from the Swin recipe for ADE20K; sliding windows of 1024 with stride 768 as SegFormer
# tests on Cityscapes in MMSegmentation. Ours: the model, the ratios, batch 8 x 1. At stride 4 a crop has 65536 patches, of
# which half are worked on, in 512 groups. For all of them: --cfg-options model.backbone.keep_ratio=1.0 model.backbone.window=8.
_base_ = [
    "../_base_/models/upernet.py",
    "../_base_/datasets/cityscapes_1024.py",
    "../_base_/schedules/cityscapes_upernet_160k.py",
    "../_base_/runtime/seg.py",
]
model = dict(
    data_preprocessor=dict(size=(1024, 1024)),
    backbone=dict(
        type="mmvit_plugins.FlatFormer",
        arch="small",
        keep_ratio=(0.5, 0.5, 0.5, 0.75),
        window=11,
        out_indices=(0, 1, 2, 3),
        drop_path_rate=0.3,
        init_cfg=dict(type="mmvit_plugins.OfficialPretrained", checkpoint="checkpoints/flatformer_small_in1k.pth"),
    ),
    decode_head=dict(in_channels=[64, 128, 320, 512], num_classes=19),
    auxiliary_head=dict(in_channels=320, num_classes=19),
    test_cfg=dict(mode="slide", crop_size=(1024, 1024), stride=(768, 768)),
)
