# ResNet-50 + FPN + Mask R-CNN on built-in scenes: the yardstick of our scenes runs. Neck, heads, data, schedule and seed are those
# of ../stvit/mask_rcnn_scenes.py; only the backbone (MMDetection's own, from scratch: nothing frozen, BN in training mode) differs.
_base_ = "../stvit/mask_rcnn_scenes.py"
model = dict(
    backbone=dict(
        _delete_=True,
        type="mmdet.ResNet",
        depth=50,
        out_indices=(0, 1, 2, 3),
        frozen_stages=-1,
        norm_cfg=dict(type="BN"),
        norm_eval=False,
        style="pytorch",
    ),
    neck=dict(in_channels=[256, 512, 1024, 2048]),
)
