# STViT-S + Semantic FPN on ADE20K, crop 512.
#
# No dense configs were released (see upernet_ade20k.py). Borrowed: the PVT recipe (docs/recipes.md): FPN 256, head 128,
# dropout 0.1, AdamW 2e-4, weight decay 1e-4, 40k iterations on 8 GPUs; 4 images per GPU and the pipeline from Context
# Cluster. Ours: drop path 0.1, the ImageNet value of STViT-S, since the schedule is a quarter of UPerNet's.
# Super tokens as in upernet_ade20k.py: 32 x 32 pixels, 16 x 16 of them in a crop.
_base_ = [
    "../_base_/models/semantic_fpn.py",
    "../_base_/datasets/ade20k.py",
    "../_base_/schedules/ade20k_semantic_fpn_40k.py",
    "../_base_/runtime/seg.py",
]
model = dict(
    backbone=dict(
        type="mmvit_plugins.STViT",
        arch="small",
        out_indices=(0, 1, 2, 3),
        drop_path_rate=0.1,
        init_cfg=dict(type="mmvit_plugins.OfficialPretrained", checkpoint="checkpoints/stvit_small_224.pth"),
    ),
    neck=dict(in_channels=[64, 128, 320, 512]),
    decode_head=dict(num_classes=150),
)
train_dataloader = dict(batch_size=4)
default_hooks = dict(checkpoint=dict(interval=4000))
