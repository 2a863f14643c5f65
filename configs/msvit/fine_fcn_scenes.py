# The other control of fcn_scenes.py: all patches of one size at about the same cost: 13 x 13 of 10 pixels, where half
# coarse patches give 160 tokens.
_base_ = "./fcn_scenes.py"
model = dict(
    backbone=dict(
        gate=dict(_delete_=True, type="mmvit_plugins.FixedGate", scale="fine"),
        gate_loss=None,
        img_size=130,
        patch_size=10,
    )
)
optim_wrapper = dict(paramwise_cfg=dict(custom_keys=dict(_delete_=True)))
