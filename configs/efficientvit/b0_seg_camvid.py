# EfficientViT-B0 (MIT's) with its Cityscapes segmentation head on CamVid, from scratch, beside configs/stvit/upernet_camvid.py
# and segformer_mit_b0_camvid.py: same data, crop, schedule, class weights and seed.
#
#   python tools/train.py configs/efficientvit/b0_seg_camvid.py --data-root /path/to/camvid     # or CAMVID_ROOT=/path/to/camvid
#
# The architecture is the authors' (backbone b0; head of width 32, one bottleneck, expansion 4), every other number is ours.
_base_ = [
    "../_base_/models/efficientvit_seg.py",
    "../_base_/datasets/camvid.py",
    "../_base_/schedules/camvid.py",
    "../_base_/runtime/seg.py",
]
class_weight = [0.80, 0.61, 4.79, 0.48, 2.21, 1.25, 4.50, 4.57, 1.83, 5.43, 6.27]  # of _base_/datasets/camvid.py
model = dict(
    data_preprocessor=dict(size=(256, 256)),
    backbone=dict(arch="b0", norm_cfg=dict(type="BN")),
    decode_head=dict(
        in_channels=[32, 64, 128],
        channels=32,
        depth=1,
        num_classes=11,
        norm_cfg=dict(type="BN"),
        loss_decode=dict(_delete_=True, type="mmvit_plugins.WeightedCrossEntropyLoss", class_weight=class_weight),
    ),
)
default_hooks = dict(checkpoint=dict(interval=400))
