# STViT-S + UPerNet on ADE20K, crop 512.
#
# The authors of STViT released no dense configs, so nothing here is theirs but the backbone. Borrowed: optimiser,
# schedule, batch 8 x 2, auxiliary head and drop path 0.3 from the Swin recipe (docs/recipes.md; UniFormer, the nearest
# published relative, does the same). Ours: super tokens stay as in ImageNet training, and the choice of no layer-wise
# decay.
# Super tokens of 32 x 32 pixels (cells 8 and 4 in stages 1 and 2): 7 x 7 at 224, 16 x 16 at 512, up to 16 x 64 for a
# 512 x 2048 panorama. Stages 3 and 4 attend globally over 32 x 32 and 16 x 16 tokens at 512.
#
# `checkpoint` is the authors' ImageNet file, to be downloaded by you (README); for training from scratch:
# --cfg-options model.backbone.init_cfg=None. tools/train.py and tools/test.py take --data-root.
_base_ = [
    "../_base_/models/upernet.py",
    "../_base_/datasets/ade20k.py",
    "../_base_/schedules/ade20k_upernet_160k.py",
    "../_base_/runtime/seg.py",
]
model = dict(
    backbone=dict(
        type="mmvit_plugins.STViT",
        arch="small",
        out_indices=(0, 1, 2, 3),
        drop_path_rate=0.3,
        init_cfg=dict(type="mmvit_plugins.OfficialPretrained", checkpoint="checkpoints/stvit_small_224.pth"),
    ),
    decode_head=dict(in_channels=[64, 128, 320, 512], num_classes=150),
    auxiliary_head=dict(in_channels=320, num_classes=150),
)
