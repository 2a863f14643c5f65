# SparseViT on Swin-T with the four dense tasks of NYUD-v2: windows pruned in the first two stages, where maps are
# large.
#
# As stvit_nyud.py with another backbone. The share of 0.2 is ours. `checkpoint` is Swin's ImageNet file
# (configs/sparsevit/README.md).
_base_ = "./stvit_nyud.py"
model = dict(
    backbone=dict(
        _delete_=True,
        type="mmvit_plugins.SparseViT",
        arch="tiny",
        pruning_ratios=(0.2, 0.2, 0.0, 0.0),
        out_indices=(0, 1, 2, 3),
        drop_path_rate=0.15,
        init_cfg=dict(
            type="mmvit_plugins.OfficialPretrained", checkpoint="checkpoints/swin_tiny_patch4_window7_224.pth"
        ),
    ),
    head=dict(in_channels=[96, 192, 384, 768]),
)
