# upernet_scenes.py trained with random pruning ratios from the start (published: as an adaptation of a dense model), and
# validated at fixed ones: half of the windows of stages 1 and 2, a quarter of stage 3. Stage 4 is one window, whose ratios
# above 0 skip the block in training.
_base_ = "./upernet_scenes.py"
model = dict(backbone=dict(pruning_ratios=(0.5, 0.5, 0.25, 0.0)))
custom_hooks = [dict(type="mmvit_plugins.SparsityAdaptationHook")]
