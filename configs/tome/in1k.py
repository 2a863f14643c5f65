# ToMe on DeiT-S, ImageNet-1k at 224: r = 13 pairs merge in each of 12 blocks, 197 tokens fall to 41.
#
# To measure the authors' weights: convert DeiT's file (README) and run tools/test.py with this config. Published, V100: off
# 79.8 % top-1 at 930 images/s; trained with r = 13: 79.36 % at 1550 images/s (their README; not repeated by us).
# To train: the authors give no training code and say to use DeiT's recipe (docs/recipes.md): AdamW 1e-3 at batch 1024,
# weight decay 0.05. Ours: the base's 310 epochs, mixup, cutmix, RandAugment and erasing, drop path 0.1, no repeated
# augmentation. Proportional attention is on: their trained checkpoints use it.
_base_ = [
    "../_base_/models/image_classifier.py",
    "../_base_/datasets/imagenet_224.py",
    "../_base_/schedules/imagenet_300e.py",
    "../_base_/runtime/cls.py",
]
model = dict(
    backbone=dict(type="mmvit_plugins.ToMe", arch="deit_small", r=13, drop_path_rate=0.1),
    head=dict(type="VisionTransformerClsHead", in_channels=384),
)
optim_wrapper = dict(
    paramwise_cfg=dict(custom_keys={".cls_token": dict(decay_mult=0.0), ".pos_embed": dict(decay_mult=0.0)})
)
