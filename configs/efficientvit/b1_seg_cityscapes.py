# EfficientViT-B1 (MIT's) with its segmentation head on Cityscapes, trained and tested at 1024 x 2048.
#
# The authors never released how they trained their segmentation models. Theirs: the architecture, the data set's size, AdamW
# with a cosine (all that the paper says, as a user reports), and the result, 80.55 mIoU (their README; not trained by us).
# Ours: everything else. lr, weight decay, warm-up, 160k iterations and batch are in _base_/schedules/seg_cosine_160k.py;
# drop path 0.05 is the authors' for ImageNet; the crop is the size of the test images, so that the attention sees as many
# tokens in training as in the test; plain cross entropy, no auxiliary head.
#
# `checkpoint` is the authors' ImageNet file, to be downloaded by you (README.md); for training from scratch:
# --cfg-options model.backbone.init_cfg=None.
_base_ = [
    "../_base_/models/efficientvit_seg.py",
    "../_base_/datasets/cityscapes_1024x2048.py",
    "../_base_/schedules/seg_cosine_160k.py",
    "../_base_/runtime/seg.py",
]
model = dict(
    data_preprocessor=dict(size=(1024, 2048)),
    backbone=dict(
        arch="b1",
        drop_path_rate=0.05,
        init_cfg=dict(type="mmvit_plugins.OfficialPretrained", checkpoint="checkpoints/efficientvit_b1.pth"),
    ),
    decode_head=dict(in_channels=[64, 128, 256], channels=64, depth=3, num_classes=19),
)
train_dataloader = dict(batch_size=1)
auto_scale_lr = dict(base_batch_size=8)
