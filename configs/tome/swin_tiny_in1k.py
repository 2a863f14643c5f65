# Swin-T with token merging in its windows, ImageNet-1k at 224: feed-forward networks see 30 of the 49 tokens of a window in
# stages 1 to 3 (a share of 0.4 merges; stage 4 is one window and stays whole). Ours; for Swin's own weights without training
# (README), or to train: the schedule of the base with Swin-T's drop path 0.2.
_base_ = [
    "../_base_/models/image_classifier.py",
    "../_base_/datasets/imagenet_224.py",
    "../_base_/schedules/imagenet_300e.py",
    "../_base_/runtime/cls.py",
]
model = dict(
    backbone=dict(
        type="mmvit_plugins.ToMeSwin",
        arch="tiny",
        r=(0.4, 0.4, 0.4, 0),
        out_indices=(3,),
        shift_small_maps=False,
        drop_path_rate=0.2,
    ),
    neck=dict(type="GlobalAveragePooling"),
    head=dict(in_channels=768),
)
