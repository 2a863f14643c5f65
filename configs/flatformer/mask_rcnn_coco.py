# FlatFormer-S for images (ours) + Mask R-CNN on COCO, 1x (12 epochs).
#
# The model is ours. Borrowed: AdamW 1e-4, weight decay 0.05, warm-up 1000, 8 GPUs x 2 images and drop path 0.2 from the Swin
# recipe (docs/recipes.md).
_base_ = [
    "../_base_/models/mask_rcnn.py",
    "../_base_/datasets/coco_instance.py",
    "../_base_/schedules/coco_1x_adamw.py",
    "../_base_/runtime/det.py",
]
model = dict(
    backbone=dict(
        type="mmvit_plugins.FlatFormer",
        arch="small",
        out_indices=(0, 1, 2, 3),
        drop_path_rate=0.2,
        init_cfg=dict(type="mmvit_plugins.OfficialPretrained", checkpoint="checkpoints/flatformer_small_in1k.pth"),
    ),
    neck=dict(in_channels=[64, 128, 320, 512]),
)
