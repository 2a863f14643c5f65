# SparseViT-mini (ours, 1 M parameters) without pruning + a slim Mask R-CNN on built-in scenes: needs no data and no weights,
# and trains in minutes on two CPU cores. Needs mmcv with compiled operators, as every config of MMDetection does.
#
# All numbers are ours, those of configs/stvit/mask_rcnn_scenes.py. Windows of 4 x 4 tokens: 64, 16, 4 and 1 of them in a scene.
_base_ = "../stvit/mask_rcnn_scenes.py"
model = dict(
    backbone=dict(_delete_=True, type="mmvit_plugins.SparseViT", arch="mini", window_size=4, out_indices=(0, 1, 2, 3)),
)
