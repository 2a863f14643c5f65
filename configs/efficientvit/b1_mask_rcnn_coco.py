# EfficientViT-B1 (MIT's) + Mask R-CNN with FPN on COCO, 1x (12 epochs).
#
# The authors published no detectors. Borrowed: AdamW 1e-4, weight decay 0.05, warm-up 1000, 8 GPUs x 2 images from the Swin
# recipe (docs/recipes.md); drop path 0.05 is theirs for ImageNet. Ours: the combination; batch norms train (no norm_eval).
_base_ = [
    "../_base_/models/mask_rcnn.py",
    "../_base_/datasets/coco_instance.py",
    "../_base_/schedules/coco_1x_adamw.py",
    "../_base_/runtime/det.py",
]
model = dict(
    backbone=dict(
        type="mmvit_plugins.EfficientViT",
        arch="b1",
        out_indices=(0, 1, 2, 3),
        drop_path_rate=0.05,
        init_cfg=dict(type="mmvit_plugins.OfficialPretrained", checkpoint="checkpoints/efficientvit_b1.pth"),
    ),
    neck=dict(in_channels=[32, 64, 128, 256]),
)
