# EfficientViT-B0 (MIT's) + a slim Mask R-CNN on built-in scenes: needs no data and no weights, and trains in
# minutes on two CPU cores. Needs mmcv with compiled operators, as every config of MMDetection does.
#
# All numbers but the backbone's are ours, those of configs/stvit/mask_rcnn_scenes.py: Mask R-CNN's widths, anchors, proposals
# and samples cut down to 128 x 128 pixels with a handful of objects.
_base_ = "../stvit/mask_rcnn_scenes.py"
model = dict(
    backbone=dict(_delete_=True, type="mmvit_plugins.EfficientViT", arch="b0", out_indices=(0, 1, 2, 3)),
    neck=dict(in_channels=[16, 32, 64, 128]),
)
