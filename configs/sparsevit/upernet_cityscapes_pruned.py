# UPerNet on Cityscapes with fixed pruning ratios, fine-tuned from the adapted model. The ratios are those published for COCO
# (34 ms); for Cityscapes none are published, so search your own. The schedule is ours, as in upernet_cityscapes_adapt.py.
_base_ = "./upernet_cityscapes_adapt.py"
model = dict(
    backbone=dict(pruning_ratios=(0.6, 0.0, (0.2, 0.2, 0.4, 0.4, 0.5, 0.5), 0.0)),
    init_cfg=dict(checkpoint="checkpoints/upernet_sparsevit_cityscapes_adapted.pth"),
)
custom_hooks = []
