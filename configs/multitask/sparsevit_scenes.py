# SparseViT-mini (ours: a Swin of about 1 M parameters) with five dense tasks on built-in scenes: needs no data and no
# weights.
#
# As stvit_scenes.py with another backbone. The first two stages skip a fifth of their windows of 7 x 7 tokens, in
# training too (ours; the published ratios are found by a search).
_base_ = "./stvit_scenes.py"
model = dict(
    backbone=dict(
        _delete_=True,
        type="mmvit_plugins.SparseViT",
        arch="mini",
        pruning_ratios=(0.2, 0.2, 0.0, 0.0),
        out_indices=(0, 1, 2, 3),
    ),
    head=dict(in_channels=[24, 48, 96, 128]),
)
