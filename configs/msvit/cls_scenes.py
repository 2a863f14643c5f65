# MSViT classifying the main object of built-in scenes (128 x 128), patches of 8 and 16 pixels, half of the coarse ones to
# stay coarse. Needs no data and no weights. All numbers are ours.
_base_ = [
    "../_base_/models/image_classifier.py",
    "../_base_/datasets/scenes_cls.py",
    "../_base_/schedules/scenes_cls.py",
    "../_base_/runtime/cls.py",
]
model = dict(
    type="mmvit_plugins.BackboneLossClassifier",
    data_preprocessor=dict(num_classes=4),
    backbone=dict(
        type="mmvit_plugins.MSViT",
        arch=dict(embed_dims=96, depth=4, num_heads=3),
        img_size=128,
        patch_size=8,
        ratio=2,
        gate=dict(type="mmvit_plugins.PatchGate", hidden=32),
        gate_loss=dict(type="mmvit_plugins.BatchShapingLoss", target=0.5, grid=(8, 8), loss_weight=4.0),
        out_type="cls_token",
        out_indices=(3,),
    ),
    head=dict(in_channels=96, num_classes=4, topk=(1,)),
    train_cfg=None,
)
optim_wrapper = dict(paramwise_cfg=dict(custom_keys={"gate_loss": dict(lr_mult=10.0, decay_mult=0.0)}))
default_hooks = dict(logger=dict(interval=25), checkpoint=dict(interval=2))
