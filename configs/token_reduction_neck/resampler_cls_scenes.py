# STViT-mini (ours) + Perceiver resampler classifying the main object of built-in scenes: 8 learned latents read the tokens of
# stage 4, their mean goes to LinearClsHead. Needs no data and no weights. All numbers are ours.
_base_ = "../stvit/cls_scenes.py"
model = dict(
    neck=dict(
        _delete_=True,
        type="mmvit_plugins.PerceiverResampler",
        in_channels=128,
        num_latents=8,
        depth=2,
        num_heads=4,
        head_dim=32,
        pool=True,
    ),
    head=dict(in_channels=128),
)
