# Context Cluster-S (7 x 7 centres) + Mask R-CNN on COCO: mask_rcnn_coco.py with another arch. Published:
# 37.2 box AP, 34.9 mask AP (not trained by us).
_base_ = "./mask_rcnn_coco.py"
model = dict(backbone=dict(arch="small_feat7"))
