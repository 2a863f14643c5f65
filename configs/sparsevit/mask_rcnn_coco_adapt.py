# Sparsity-aware adaptation of mask_rcnn_coco.py: 12 epochs with random pruning ratios in training, validated dense (change
# model.backbone.pruning_ratios to validate at others). SparseViT, section 3.
#
# Theirs: AdamW 1e-5, weight decay 0.05, drop path 0.2, ratios from 0, 0.1 ... 0.8 for each two blocks, sorted within a stage, a
# draw of its own on each GPU; from the 3x model. Not found, so ours: drops at 8 and 11.
# `checkpoint` is a detector: your own of mask_rcnn_coco.py, or one of the authors, whose keys are converted.
_base_ = "./mask_rcnn_coco.py"
model = dict(
    backbone=dict(init_cfg=None),
    init_cfg=dict(type="mmvit_plugins.OfficialPretrained", checkpoint="checkpoints/mask_rcnn_swin_tiny_672.pth"),
)
optim_wrapper = dict(optimizer=dict(lr=1e-5))
train_cfg = dict(max_epochs=12)
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-3, by_epoch=False, begin=0, end=1000),
    dict(type="MultiStepLR", by_epoch=True, begin=0, end=12, milestones=[8, 11], gamma=0.1),
]
custom_hooks = [dict(type="mmvit_plugins.SparsityAdaptationHook")]
