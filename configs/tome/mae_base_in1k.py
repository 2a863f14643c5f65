# ToMe on a ViT-B/16 fine-tuned from MAE: mean of the patch tokens, weighted by what each stands for, then the norm; class
# token kept but not read. Published, V100: trained off 83.62 % at 309 images/s, r = 16: 81.91 % at 603 images/s.
# Proportional attention is on, as in the authors' trained checkpoints; for MAE's own fine-tuned file without training
# switch it off: --cfg-options model.backbone.prop_attn=False. Schedule and augmentation: the base's, not MAE's (ours).
_base_ = "./in1k.py"
model = dict(
    backbone=dict(
        arch=None,
        model=dict(type="mmpretrain.VisionTransformer", arch="base", out_type="avg_featmap", final_norm=False),
        r=16,
    ),
    head=dict(type="LinearClsHead", in_channels=768),
)
