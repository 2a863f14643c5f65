# STViT-S + Mask R-CNN on COCO, 3x (36 epochs) with multi-scale training: mask_rcnn_coco.py with the Swin recipe's 3x
# schedule and pipeline (docs/recipes.md). Training sizes differ between batches, super tokens stay 32 x 32 pixels.
_base_ = [
    "../_base_/models/mask_rcnn.py",
    "../_base_/datasets/coco_instance_multiscale.py",
    "../_base_/schedules/coco_3x_adamw.py",
    "../_base_/runtime/det.py",
]
model = dict(
    backbone=dict(
        type="mmvit_plugins.STViT",
        arch="small",
        out_indices=(0, 1, 2, 3),
        drop_path_rate=0.2,
        init_cfg=dict(type="mmvit_plugins.OfficialPretrained", checkpoint="checkpoints/stvit_small_224.pth"),
    ),
    neck=dict(in_channels=[64, 128, 320, 512]),
)
