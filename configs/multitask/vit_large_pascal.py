# ViT-L/16 with the five dense tasks of PASCAL-Context in InvPT's recipe: the slot for its backbone, not InvPT itself,
# whose decoder exchanges features between tasks.
#
# From InvPT: backbone, drop path 0.15, Adam 2e-5 and schedule, crop, augmentation, loss weights. Ours: the four maps
# that Feature2Pyramid makes of layers 6, 12, 18 and 24, and the heads. From scratch as it stands: put your ViT-L
# weights into model.backbone.init_cfg, dict(type="Pretrained", checkpoint=..., prefix="backbone.") for MMPretrain's.
_base_ = [
    "../_base_/models/multitask_pascal.py",
    "../_base_/datasets/pascal_multitask.py",
    "../_base_/schedules/multitask_40k_invpt.py",
    "../_base_/runtime/multitask.py",
]
model = dict(
    backbone=dict(
        type="mmpretrain.VisionTransformer",
        arch="l",
        img_size=384,
        patch_size=16,
        drop_path_rate=0.15,
        out_type="featmap",
        out_indices=(5, 11, 17, 23),
        final_norm=False,
    ),
    neck=dict(type="mmseg.Feature2Pyramid", embed_dim=1024, rescales=[4, 2, 1, 0.5]),
    head=dict(in_channels=[1024, 1024, 1024, 1024]),
)
train_dataloader = dict(batch_size=2)
