# Context Cluster-S (5 x 5 centres) + Mask R-CNN on COCO: mask_rcnn_coco.py with another arch. Published:
# 37.5 box AP, 35.4 mask AP (not trained by us).
_base_ = "./mask_rcnn_coco.py"
model = dict(backbone=dict(arch="small_feat5"))
