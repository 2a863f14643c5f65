# ToMe on DeiT-S + Mask R-CNN on COCO in the manner of ViTDet, 1x (12 epochs).
#
# Borrowed: from ViTDet (arXiv 2203.16527) windows of 14 x 14 tokens, four global blocks evenly spaced, no class token, and
# the simple feature pyramid; from the Swin recipe (docs/recipes.md) AdamW 1e-4, weight decay 0.05, warm-up 1000, 8 GPUs x 2
# images, 1333 x 800. Ours: merging (each window merges r = 8 tokens in each block, 196 fall to 100; windows stay equal rows
# of one tensor, global blocks join them without restoring), the short schedule, drop path 0.1.
# ViTDet itself starts from MAE and trains 100 epochs with large-scale jitter at 1024.
_base_ = [
    "../_base_/models/mask_rcnn.py",
    "../_base_/datasets/coco_instance.py",
    "../_base_/schedules/coco_1x_adamw.py",
    "../_base_/runtime/det.py",
]
model = dict(
    backbone=dict(
        type="mmvit_plugins.ToMe",
        model=dict(type="mmpretrain.VisionTransformer", arch="deit-small", with_cls_token=False, out_type="featmap"),
        r=8,
        window_size=14,
        global_blocks=(2, 5, 8, 11),
        drop_path_rate=0.1,
        init_cfg=dict(type="mmvit_plugins.OfficialPretrained", checkpoint="checkpoints/deit_small_patch16_224.pth"),
    ),
    neck=dict(_delete_=True, type="mmvit_plugins.SimpleFeaturePyramid", in_channels=384, out_channels=256, num_outs=5),
)
optim_wrapper = dict(paramwise_cfg=dict(custom_keys={".pos_embed": dict(decay_mult=0.0)}))
