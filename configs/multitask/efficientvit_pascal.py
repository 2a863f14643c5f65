# EfficientViT-B1 (MIT) with the five dense tasks of PASCAL-Context.
#
# As stvit_pascal.py with another backbone. `checkpoint` is the authors' ImageNet file (configs/efficientvit/README.md).
_base_ = "./stvit_pascal.py"
model = dict(
    backbone=dict(
        _delete_=True,
        type="mmvit_plugins.EfficientViT",
        arch="b1",
        out_indices=(0, 1, 2, 3),
        drop_path_rate=0.05,
        init_cfg=dict(type="mmvit_plugins.OfficialPretrained", checkpoint="checkpoints/efficientvit_b1.pth"),
    ),
    head=dict(in_channels=[32, 64, 128, 256]),
)
