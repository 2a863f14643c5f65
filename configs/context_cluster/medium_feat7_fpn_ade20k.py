# Context Cluster-M (7 x 7 centres) + Semantic FPN on ADE20K: fpn_ade20k.py with another arch. Published:
# 40.8 mIoU (not trained by us).
_base_ = "./fpn_ade20k.py"
model = dict(backbone=dict(arch="medium_feat7", init_cfg=dict(checkpoint="checkpoints/coc_medium.pth")))
