# Context Cluster-M (5 x 5 centres) + Semantic FPN on ADE20K: fpn_ade20k.py with another arch. Published:
# 40.6 mIoU (not trained by us).
_base_ = "./fpn_ade20k.py"
model = dict(backbone=dict(arch="medium_feat5", init_cfg=dict(checkpoint="checkpoints/coc_medium.pth")))
