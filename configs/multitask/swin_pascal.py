# Swin-T of MMSegmentation with the five dense tasks of PASCAL-Context. Published beside it (docs/multitask.md): the
# Swin-T baselines of DeMT, whose recipe is not known to us.
#
# As stvit_pascal.py with a backbone of the host. `checkpoint` is OpenMMLab's conversion of the ImageNet weights.
_base_ = "./stvit_pascal.py"
model = dict(
    backbone=dict(
        _delete_=True,
        type="mmseg.SwinTransformer",
        embed_dims=96,
        depths=(2, 2, 6, 2),
        num_heads=(3, 6, 12, 24),
        window_size=7,
        drop_path_rate=0.15,
        init_cfg=dict(
            type="Pretrained",
            checkpoint="https://download.openmmlab.com/mmsegmentation/v0.5/pretrain/swin/swin_tiny_patch4_window7_224_20220317-1cdeb081.pth",
        ),
    ),
    head=dict(in_channels=[96, 192, 384, 768]),
)
