# ResNet-50, the yardstick of the field, for tools/benchmark.py: MMPretrain's own backbone, nothing of ours. The schedule is the
# one of our ImageNet configs and only makes the config trainable: no figure here comes from training it.
_base_ = [
    "../_base_/models/image_classifier.py",
    "../_base_/datasets/imagenet_224.py",
    "../_base_/schedules/imagenet_300e.py",
    "../_base_/runtime/cls.py",
]
model = dict(
    backbone=dict(type="ResNet", depth=50, out_indices=(0, 1, 2, 3), style="pytorch"),
    neck=dict(type="GlobalAveragePooling"),
    head=dict(in_channels=2048),
)
