# Context Cluster-M (5 x 5 centres) + Mask R-CNN on COCO: mask_rcnn_coco.py with another arch. Published:
# 40.1 box AP, 37.4 mask AP (not trained by us).
_base_ = "./mask_rcnn_coco.py"
model = dict(backbone=dict(arch="medium_feat5", init_cfg=dict(checkpoint="checkpoints/coc_medium.pth")))
