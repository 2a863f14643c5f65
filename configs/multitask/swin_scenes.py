# A small Swin transformer of MMSegmentation with five dense tasks on built-in scenes: needs no data and no weights.
#
# As stvit_scenes.py with a backbone of the host; its widths and depths are ours, those of SparseViT-mini.
_base_ = "./stvit_scenes.py"
model = dict(
    backbone=dict(
        _delete_=True,
        type="mmseg.SwinTransformer",
        embed_dims=24,
        depths=(2, 2, 4, 2),
        num_heads=(1, 2, 4, 8),
        window_size=7,
        drop_path_rate=0.0,
    ),
    head=dict(in_channels=[24, 48, 96, 192]),
)
