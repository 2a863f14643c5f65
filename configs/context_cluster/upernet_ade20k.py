# Context Cluster-S (5 x 5 centres) + UPerNet on ADE20K, crop 512.
#
# Ours: the authors have no UPerNet. Borrowed: optimiser, schedule, batch 8 x 2, auxiliary head and drop path 0.3 from the Swin
# recipe (docs/recipes.md). 5 x 5 centres in each of 8, 4, 2, 1 regions per side, their middle dense variant.
_base_ = [
    "../_base_/models/upernet.py",
    "../_base_/datasets/ade20k.py",
    "../_base_/schedules/ade20k_upernet_160k.py",
    "../_base_/runtime/seg.py",
]
model = dict(
    backbone=dict(
        type="mmvit_plugins.ContextCluster",
        arch="small_feat5",
        out_indices=(0, 1, 2, 3),
        drop_path_rate=0.3,
        init_cfg=dict(type="mmvit_plugins.OfficialPretrained", checkpoint="checkpoints/coc_small.pth"),
    ),
    decode_head=dict(in_channels=[64, 128, 320, 512], num_classes=150),
    auxiliary_head=dict(in_channels=320, num_classes=150),
)
