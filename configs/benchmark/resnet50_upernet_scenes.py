# ResNet-50 + UPerHead on built-in scenes: the yardstick of our scenes runs. Heads, data, schedule and seed are those of
# ../stvit/upernet_scenes.py; only the backbone (MMSegmentation's own, from scratch) differs.
_base_ = "../stvit/upernet_scenes.py"
widths = [256, 512, 1024, 2048]
model = dict(
    backbone=dict(
        _delete_=True,
        type="mmseg.ResNet",
        depth=50,
        out_indices=(0, 1, 2, 3),
        norm_cfg=dict(type="BN"),
        style="pytorch",
    ),
    decode_head=dict(in_channels=widths),
    auxiliary_head=dict(in_channels=1024),
)
