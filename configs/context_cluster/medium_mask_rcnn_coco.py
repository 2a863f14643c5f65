# Context Cluster-M (2 x 2 centres) + Mask R-CNN on COCO: mask_rcnn_coco.py with another arch. Published:
# 38.6 box AP, 36.1 mask AP (not trained by us).
_base_ = "./mask_rcnn_coco.py"
model = dict(backbone=dict(arch="medium_feat2", init_cfg=dict(checkpoint="checkpoints/coc_medium.pth")))
