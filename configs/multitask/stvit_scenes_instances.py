# STViT-mini with the five dense tasks of stvit_scenes.py and a slim Mask R-CNN on the same features: built-in scenes,
# no data, no weights. Needs mmcv with compiled operators, as every detector of MMDetection does.
#
# All numbers are ours; the detector is that of stvit/mask_rcnn_scenes.py without its backbone.
_base_ = "./stvit_scenes.py"
layers = ["seg", "depth", "normals", "boundary", "saliency", "camera", "instances"]
detector = dict(
    _scope_="mmdet",
    type="MaskRCNN",
    neck=dict(type="FPN", in_channels=[24, 48, 96, 128], out_channels=64, num_outs=4, norm_cfg=dict(type="BN")),
    rpn_head=dict(
        type="RPNHead",
        in_channels=64,
        feat_channels=64,
        anchor_generator=dict(type="AnchorGenerator", scales=[4], ratios=[0.5, 1.0, 2.0], strides=[4, 8, 16, 32]),
        bbox_coder=dict(type="DeltaXYWHBBoxCoder", target_means=[0.0, 0.0, 0.0, 0.0], target_stds=[1.0, 1.0, 1.0, 1.0]),
        loss_cls=dict(type="CrossEntropyLoss", use_sigmoid=True, loss_weight=1.0),
        loss_bbox=dict(type="L1Loss", loss_weight=1.0),
    ),
    roi_head=dict(
        type="StandardRoIHead",
        bbox_roi_extractor=dict(
            type="SingleRoIExtractor",
            roi_layer=dict(type="RoIAlign", output_size=7, sampling_ratio=0),
            out_channels=64,
            featmap_strides=[4, 8, 16, 32],
            finest_scale=28,
        ),
        bbox_head=dict(
            type="Shared4Conv1FCBBoxHead",
            in_channels=64,
            conv_out_channels=64,
            fc_out_channels=128,
            norm_cfg=dict(type="BN"),
            roi_feat_size=7,
            num_classes=4,
            bbox_coder=dict(
                type="DeltaXYWHBBoxCoder", target_means=[0.0, 0.0, 0.0, 0.0], target_stds=[0.1, 0.1, 0.2, 0.2]
            ),
            reg_class_agnostic=False,
            loss_cls=dict(type="CrossEntropyLoss", use_sigmoid=False, loss_weight=1.0),
            loss_bbox=dict(type="L1Loss", loss_weight=1.0),
        ),
        mask_roi_extractor=dict(
            type="SingleRoIExtractor",
            roi_layer=dict(type="RoIAlign", output_size=14, sampling_ratio=0),
            out_channels=64,
            featmap_strides=[4, 8, 16, 32],
            finest_scale=28,
        ),
        mask_head=dict(
            type="FCNMaskHead",
            num_convs=2,
            in_channels=64,
            conv_out_channels=64,
            num_classes=4,
            norm_cfg=dict(type="BN"),
            loss_mask=dict(type="CrossEntropyLoss", use_mask=True, loss_weight=1.0),
        ),
    ),
    train_cfg=dict(
        rpn=dict(
            assigner=dict(
                type="MaxIoUAssigner",
                pos_iou_thr=0.7,
                neg_iou_thr=0.3,
                min_pos_iou=0.3,
                match_low_quality=True,
                ignore_iof_thr=-1,
            ),
            sampler=dict(type="RandomSampler", num=64, pos_fraction=0.5, neg_pos_ub=-1, add_gt_as_proposals=False),
            allowed_border=-1,
            pos_weight=-1,
            debug=False,
        ),
        rpn_proposal=dict(nms_pre=200, max_per_img=100, nms=dict(type="nms", iou_threshold=0.7), min_bbox_size=0),
        rcnn=dict(
            assigner=dict(
                type="MaxIoUAssigner",
                pos_iou_thr=0.5,
                neg_iou_thr=0.5,
                min_pos_iou=0.5,
                match_low_quality=True,
                ignore_iof_thr=-1,
            ),
            sampler=dict(type="RandomSampler", num=32, pos_fraction=0.25, neg_pos_ub=-1, add_gt_as_proposals=True),
            mask_size=28,
            pos_weight=-1,
            debug=False,
        ),
    ),
    test_cfg=dict(
        rpn=dict(nms_pre=200, max_per_img=100, nms=dict(type="nms", iou_threshold=0.7), min_bbox_size=0),
        rcnn=dict(score_thr=0.05, nms=dict(type="nms", iou_threshold=0.5), max_per_img=30, mask_thr_binary=0.5),
    ),
)
model = dict(tasks=dict(instances=dict(type="mmvit_plugins.InstanceTask", detector=detector, loss_weight=1.0)))
train_pipeline = [
    dict(type="mmvit_plugins.LoadScene", layers=layers),
    dict(type="mmvit_plugins.TaskFlip", prob=0.5),
    dict(type="mmvit_plugins.PackDenseTaskInputs"),
]
test_pipeline = [
    dict(type="mmvit_plugins.LoadScene", layers=layers),
    dict(type="mmvit_plugins.PackDenseTaskInputs"),
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
val_evaluator = [
    dict(type="mmvit_plugins.LabelMetric", num_classes=6),
    dict(type="mmvit_plugins.DepthErrorMetric"),
    dict(type="mmvit_plugins.NormalsMetric"),
    dict(type="mmvit_plugins.BoundaryMetric", max_dist=0.011, num_thresholds=19),
    dict(type="mmvit_plugins.SaliencyMetric"),
    dict(type="mmvit_plugins.InstanceMetric", metric=["bbox", "segm"]),
]
test_evaluator = val_evaluator
