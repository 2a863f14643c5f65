# Context Cluster-M (7 x 7 centres) + Mask R-CNN on COCO: mask_rcnn_coco.py with another arch. Published:
# 40.6 box AP, 37.6 mask AP (not trained by us).
_base_ = "./mask_rcnn_coco.py"
model = dict(backbone=dict(arch="medium_feat7", init_cfg=dict(checkpoint="checkpoints/coc_medium.pth")))
