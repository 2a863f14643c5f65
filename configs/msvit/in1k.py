# MSViT-S (DeiT-S with a gate) on ImageNet-1k at 224: 20 epochs from DeiT-S weights, half of the 32-pixel patches coarse.
#
# The paper's: patches of 16 and 32 pixels, shared embedding of resized patches, gate MLP of 4 layers, Gumbel noise with
# straight-through, generalised batch shaping, 20 epochs from pretrained weights, trimming after a burn-in. Recalled, not
# verified: targets of 0.5, 0.25, 0.1 and loss weights of 1, 4, 20. Ours: gate width 64, temperature 0.5, deviation 0.1 of the
# hyperprior, AdamW 5e-5 (cosine), drop path 0.1, burn-in of 2 epochs. Not trained by us.
#
# `checkpoint` is DeiT-S in MMPretrain's layout, to be downloaded by you (README); for training from scratch:
# --cfg-options model.backbone.init_cfg=None.
_base_ = [
    "../_base_/models/image_classifier.py",
    "../_base_/datasets/imagenet_224.py",
    "../_base_/runtime/cls.py",
]
model = dict(
    type="mmvit_plugins.BackboneLossClassifier",
    backbone=dict(
        type="mmvit_plugins.MSViT",
        arch="small",
        img_size=224,
        patch_size=16,
        ratio=2,
        gate=dict(type="mmvit_plugins.PatchGate"),
        gate_loss=dict(type="mmvit_plugins.BatchShapingLoss", target=0.5, grid=(7, 7), loss_weight=4.0),
        drop_path_rate=0.1,
        out_type="cls_token",
        out_indices=(3,),
        init_cfg=dict(type="Pretrained", checkpoint="checkpoints/deit_small.pth", prefix="backbone."),
    ),
    head=dict(in_channels=384),
)
train_cfg = dict(by_epoch=True, max_epochs=20, val_interval=1)
val_cfg = dict()
test_cfg = dict()
optim_wrapper = dict(
    type="OptimWrapper",
    optimizer=dict(type="AdamW", lr=5e-5, weight_decay=0.05, betas=(0.9, 0.999)),
    paramwise_cfg=dict(
        norm_decay_mult=0.0,
        bias_decay_mult=0.0,
        flat_decay_mult=0.0,
        # The priors of the gates are not weights: no decay, and a rate at which they can move.
        custom_keys={"gate_loss": dict(lr_mult=100.0, decay_mult=0.0)},
    ),
)
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-2, by_epoch=True, begin=0, end=1, convert_to_iter_based=True),
    dict(type="CosineAnnealingLR", eta_min=1e-6, by_epoch=True, begin=1, end=20, T_max=19, convert_to_iter_based=True),
]
auto_scale_lr = dict(enable=False, base_batch_size=1024)
# 1251 iterations of 1024 images are an epoch.
custom_hooks = [dict(type="mmvit_plugins.TokenTrimmingHook", begin=2502, trim="mean")]
