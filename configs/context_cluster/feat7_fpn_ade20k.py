# Context Cluster-S (7 x 7 centres) + Semantic FPN on ADE20K: fpn_ade20k.py with another arch. Published:
# 36.3 mIoU (not trained by us).
_base_ = "./fpn_ade20k.py"
model = dict(backbone=dict(arch="small_feat7"))
