# ResNet-50 on built-in scenes (class of the main object): the yardstick of our scenes runs. Data, schedule and seed are those of
# ../stvit/cls_scenes.py; only the backbone (MMPretrain's own, from scratch) and its pooling differ.
_base_ = "../stvit/cls_scenes.py"
model = dict(
    backbone=dict(_delete_=True, type="mmpretrain.ResNet", depth=50, out_indices=(3,), style="pytorch"),
    neck=dict(_delete_=True, type="GlobalAveragePooling"),
    head=dict(in_channels=2048),
)
