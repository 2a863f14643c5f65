# Context Cluster-mini (ours, 0.7 M parameters) + a slim Mask R-CNN on built-in scenes: needs no data and no weights. Needs mmcv
# with compiled operators, as every config of MMDetection does.
#
# All numbers are ours, those of configs/stvit/mask_rcnn_scenes.py. Layer scale starts at 0.1 (upernet_scenes.py).
_base_ = "../stvit/mask_rcnn_scenes.py"
model = dict(
    backbone=dict(
        _delete_=True, type="mmvit_plugins.ContextCluster", arch="mini", layer_scale=0.1, out_indices=(0, 1, 2, 3)
    ),
)
