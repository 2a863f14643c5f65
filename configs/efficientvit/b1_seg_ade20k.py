# EfficientViT-B1 (MIT's) with its segmentation head on ADE20K, crop 512.
#
# As b1_seg_cityscapes.py: theirs are the architecture (no expansion before the classifier here), the size 512, AdamW with a
# cosine and the result, 42.84 mIoU (their README; not trained by us); everything else is ours, _base_/schedules/seg_cosine_160k.py
# says what. The pipeline is the one of our other ADE20K configs.
_base_ = [
    "../_base_/models/efficientvit_seg.py",
    "../_base_/datasets/ade20k.py",
    "../_base_/schedules/seg_cosine_160k.py",
    "../_base_/runtime/seg.py",
]
model = dict(
    backbone=dict(
        arch="b1",
        drop_path_rate=0.05,
        init_cfg=dict(type="mmvit_plugins.OfficialPretrained", checkpoint="checkpoints/efficientvit_b1.pth"),
    ),
    decode_head=dict(in_channels=[64, 128, 256], channels=64, depth=3, final_expand=1, num_classes=150),
)
