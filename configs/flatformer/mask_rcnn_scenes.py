# FlatFormer-mini for images (ours, 1 M parameters) + a slim Mask R-CNN on built-in scenes: needs no data and no weights, and
# trains in minutes on two CPU cores. Needs mmcv with compiled operators, as every config of MMDetection does.
#
# All numbers are ours, those of configs/stvit/mask_rcnn_scenes.py.
_base_ = "../stvit/mask_rcnn_scenes.py"
model = dict(
    backbone=dict(_delete_=True, type="mmvit_plugins.FlatFormer", arch="mini", out_indices=(0, 1, 2, 3)),
)
