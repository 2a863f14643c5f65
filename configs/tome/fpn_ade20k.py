# ToMe on DeiT-S + Semantic FPN on ADE20K, crop 512.
#
# Borrowed: the PVT recipe (docs/recipes.md): FPN 256, head 128, dropout 0.1, AdamW 2e-4, weight decay 1e-4, 40k iterations on
# 8 GPUs; 4 images per GPU and the pipeline from Context Cluster. Ours: r and the pyramid in front, as in upernet_ade20k.py.
_base_ = [
    "../_base_/models/semantic_fpn.py",
    "../_base_/datasets/ade20k.py",
    "../_base_/schedules/ade20k_semantic_fpn_40k.py",
    "../_base_/runtime/seg.py",
]
model = dict(
    backbone=dict(
        type="mmvit_plugins.ToMe",
        arch="deit_small",
        r=40,
        out_type="featmap",
        out_indices=(3, 5, 7, 11),
        drop_path_rate=0.1,
        init_cfg=dict(type="mmvit_plugins.OfficialPretrained", checkpoint="checkpoints/deit_small_patch16_224.pth"),
    ),
    neck=[
        dict(type="Feature2Pyramid", embed_dim=384, rescales=[4, 2, 1, 0.5]),
        dict(type="FPN", in_channels=[384, 384, 384, 384], out_channels=256, num_outs=4),
    ],
    decode_head=dict(num_classes=150),
)
train_dataloader = dict(batch_size=4)
default_hooks = dict(checkpoint=dict(interval=4000))
