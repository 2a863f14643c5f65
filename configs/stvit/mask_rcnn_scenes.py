# STViT-mini (ours, about 1 M parameters) + a slim Mask R-CNN on built-in scenes: needs no data and no weights, and trains in
# minutes on two CPU cores. Needs mmcv with compiled operators, as every config of MMDetection does.
#
# All numbers are ours: Mask R-CNN's widths, anchors, proposals and samples cut down to 128 x 128 pixels with a handful of
# objects; norms in neck and mask head, since it starts from scratch. Super tokens cover 32 x 32 pixels, 4 x 4 of them in a
# scene.
_base_ = [
    "../_base_/models/mask_rcnn.py",
    "../_base_/datasets/scenes_det.py",
    "../_base_/schedules/scenes_det.py",
    "../_base_/runtime/det.py",
]
model = dict(
    backbone=dict(type="mmvit_plugins.STViT", arch="mini", out_indices=(0, 1, 2, 3)),
    neck=dict(in_channels=[24, 48, 96, 128], out_channels=64, num_outs=4, norm_cfg=dict(type="BN")),
    rpn_head=dict(
        in_channels=64,
        feat_channels=64,
        anchor_generator=dict(scales=[4], strides=[4, 8, 16, 32]),
    ),
    roi_head=dict(
        bbox_roi_extractor=dict(out_channels=64, finest_scale=28),
        # Convolutions with norms before the fully connected layer, which training from scratch wants ("Rethinking ImageNet
        # Pre-training", arXiv:1811.08883).
        bbox_head=dict(
            type="Shared4Conv1FCBBoxHead",
            in_channels=64,
            conv_out_channels=64,
            fc_out_channels=128,
            num_classes=4,
            norm_cfg=dict(type="BN"),
        ),
        mask_roi_extractor=dict(out_channels=64, finest_scale=28),
        mask_head=dict(num_convs=2, in_channels=64, conv_out_channels=64, num_classes=4, norm_cfg=dict(type="BN")),
    ),
    train_cfg=dict(
        rpn=dict(sampler=dict(num=64)),
        rpn_proposal=dict(nms_pre=200, max_per_img=100),
        rcnn=dict(sampler=dict(num=32)),
    ),
    test_cfg=dict(rpn=dict(nms_pre=200, max_per_img=100), rcnn=dict(max_per_img=30)),
)
default_hooks = dict(logger=dict(interval=20))
