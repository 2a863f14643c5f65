# ToMe on a small ViT (ours, about 1 M parameters) classifying the main object of built-in scenes: needs no data and no
# weights.
#
# All numbers are ours: patches of 8 x 8 pixels, 257 tokens of a 128 x 128 scene, r = 24 in each of 6 blocks leave 113. No
# mixup, cutmix or random erasing: the task is the shape of one object among several.
_base_ = [
    "../_base_/models/image_classifier.py",
    "../_base_/datasets/scenes_cls.py",
    "../_base_/schedules/scenes_cls.py",
    "../_base_/runtime/cls.py",
]
model = dict(
    data_preprocessor=dict(num_classes=4),
    backbone=dict(
        type="mmvit_plugins.ToMe",
        model=dict(
            type="mmpretrain.VisionTransformer",
            arch=dict(embed_dims=128, num_layers=6, num_heads=4, feedforward_channels=512),
            img_size=128,
            patch_size=8,
        ),
        r=24,
    ),
    head=dict(type="VisionTransformerClsHead", in_channels=128, num_classes=4, topk=(1,)),
    train_cfg=None,
)
default_hooks = dict(logger=dict(interval=25), checkpoint=dict(interval=2))
