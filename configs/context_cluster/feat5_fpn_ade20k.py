# Context Cluster-S (5 x 5 centres) + Semantic FPN on ADE20K: fpn_ade20k.py with another arch. Published:
# 36.4 mIoU (not trained by us).
_base_ = "./fpn_ade20k.py"
model = dict(backbone=dict(arch="small_feat5"))
