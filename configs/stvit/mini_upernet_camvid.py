# STViT-mini (ours, about 1 M parameters) + a slim UPerHead on CamVid: upernet_camvid.py with the backbone and the head width of
# upernet_scenes.py. The plain model beside configs/token_reduction_neck/*upernet_camvid.py. All numbers are ours.
_base_ = "./upernet_camvid.py"
model = dict(
    backbone=dict(arch="mini"),
    decode_head=dict(in_channels=[24, 48, 96, 128], channels=48),
    auxiliary_head=dict(in_channels=96, channels=48),
)
