# STViT-S + UPerNet on Cityscapes, crop 1024.
#
# No dense configs were released (see upernet_ade20k.py). Borrowed: optimiser, 160k iterations and drop path from the Swin
# recipe for ADE20K; sliding windows of 1024 with stride 768 as SegFormer tests on Cityscapes in MMSegmentation. Ours: the
# combination, and batch 8 x 1.
# Super tokens of 32 x 32 pixels, 32 x 32 of them in a crop. Stage 3 attends globally over 64 x 64 = 4096 tokens: most of
# the cost. The authors' model file mentions two other sets of cells: (16, 8, 1, 1), 16 x 16 super tokens of 64 pixels, and
# (16, 8, 2, 1), which brings stage 3 down to 32 x 32 super tokens. Cells have no weights, so either works with the
# official file: write `arch` out as a mapping (docs/configs.md has it).
_base_ = [
    "../_base_/models/upernet.py",
    "../_base_/datasets/cityscapes_1024.py",
    "../_base_/schedules/cityscapes_upernet_160k.py",
    "../_base_/runtime/seg.py",
]
model = dict(
    data_preprocessor=dict(size=(1024, 1024)),
    backbone=dict(
        type="mmvit_plugins.STViT",
        arch="small",
        out_indices=(0, 1, 2, 3),
        drop_path_rate=0.3,
        init_cfg=dict(type="mmvit_plugins.OfficialPretrained", checkpoint="checkpoints/stvit_small_224.pth"),
    ),
    decode_head=dict(in_channels=[64, 128, 320, 512], num_classes=19),
    auxiliary_head=dict(in_channels=320, num_classes=19),
    test_cfg=dict(mode="slide", crop_size=(1024, 1024), stride=(768, 768)),
)
