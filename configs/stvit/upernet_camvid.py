# STViT-tiny (ours, about 5 M parameters) + UPerHead on CamVid: a folder of images of your own, trained from scratch.
#
#   python tools/train.py configs/stvit/upernet_camvid.py --data-root /path/to/camvid      # or CAMVID_ROOT=/path/to/camvid
#
# All numbers are ours: the authors of STViT published neither a model of this size nor dense configs. Data, crop,
# schedule and seed are shared with segformer_mit_b0_camvid.py, so that the two can be compared.
# Super tokens of the tiny arch cover 32 x 32 pixels in stages 1 and 2 (cells of 8 x 8 tokens at stride 4, 4 x 4 at stride
# 8): 8 x 8 of them in a 256 x 256 crop, 12 x 15 in a 360 x 480 image. Stages 3 and 4 attend globally over at most
# 23 x 30 tokens.
_base_ = [
    "../_base_/models/upernet.py",
    "../_base_/datasets/camvid.py",
    "../_base_/schedules/camvid.py",
    "../_base_/runtime/seg.py",
]
class_weight = [0.80, 0.61, 4.79, 0.48, 2.21, 1.25, 4.50, 4.57, 1.83, 5.43, 6.27]  # of _base_/datasets/camvid.py
model = dict(
    data_preprocessor=dict(size=(256, 256)),
    backbone=dict(type="mmvit_plugins.STViT", arch="tiny", out_indices=(0, 1, 2, 3), drop_path_rate=0.1),
    decode_head=dict(
        in_channels=[32, 64, 160, 256],
        channels=64,
        num_classes=11,
        norm_cfg=dict(type="BN"),
        loss_decode=dict(_delete_=True, type="mmvit_plugins.WeightedCrossEntropyLoss", class_weight=class_weight),
    ),
    auxiliary_head=dict(
        in_channels=160,
        channels=64,
        num_classes=11,
        norm_cfg=dict(type="BN"),
        loss_decode=dict(
            _delete_=True, type="mmvit_plugins.WeightedCrossEntropyLoss", class_weight=class_weight, loss_weight=0.4
        ),
    ),
)
default_hooks = dict(checkpoint=dict(interval=400))
