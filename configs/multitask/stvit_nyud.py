# STViT-S with the four dense tasks of NYUD-v2. No published result: no paper of these backbones reports any.
#
# Loss weights, augmentation, length: docs/multitask.md says which reference implementation they are from. Heads,
# optimiser and drop path 0.15 of a transformer are ours or InvPT's. `checkpoint` is the authors' ImageNet file, to be
# downloaded by you (configs/stvit/README.md); from scratch: --cfg-options model.backbone.init_cfg=None. Single-task
# twins: single/stvit_nyud_<task>.py.
_base_ = [
    "../_base_/models/multitask_nyud.py",
    "../_base_/datasets/nyud_multitask.py",
    "../_base_/schedules/multitask_40k.py",
    "../_base_/runtime/multitask.py",
]
model = dict(
    backbone=dict(
        type="mmvit_plugins.STViT",
        arch="small",
        out_indices=(0, 1, 2, 3),
        drop_path_rate=0.15,
        init_cfg=dict(type="mmvit_plugins.OfficialPretrained", checkpoint="checkpoints/stvit_small_224.pth"),
    ),
    head=dict(in_channels=[64, 128, 320, 512]),
)
