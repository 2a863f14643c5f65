# Swin-T (SparseViT without pruning) on ImageNet-1k at 224: Swin's recipe (docs/recipes.md), drop path 0.2. Published: 81.2 %
# top-1 with 28 M parameters and 4.5 GFLOPs (not trained by us). Repeated augmentation of the data's config is left out.
# Odd blocks of the last stage, which is one window at 224, do not shift, as in Microsoft's code; dense tasks do.
_base_ = [
    "../_base_/models/image_classifier.py",
    "../_base_/datasets/imagenet_224.py",
    "../_base_/schedules/imagenet_swin_300e.py",
    "../_base_/runtime/cls.py",
]
model = dict(
    backbone=dict(
        type="mmvit_plugins.SparseViT",
        arch="tiny",
        shift_small_maps=False,
        out_indices=(3,),
        drop_path_rate=0.2,
    ),
    neck=dict(type="GlobalAveragePooling"),
    head=dict(in_channels=768),
)
train_dataloader = dict(sampler=dict(_delete_=True, _scope_="mmpretrain", type="DefaultSampler", shuffle=True))
