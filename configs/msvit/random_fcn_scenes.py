# The control of fcn_scenes.py: the same number of coarse patches, at random places.
_base_ = "./fcn_scenes.py"
model = dict(backbone=dict(gate=dict(_delete_=True, type="mmvit_plugins.RandomGate", share=0.5), gate_loss=None))
optim_wrapper = dict(paramwise_cfg=dict(custom_keys=dict(_delete_=True)))
