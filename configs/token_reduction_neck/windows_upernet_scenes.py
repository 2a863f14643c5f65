# As upernet_scenes.py with window pruning as reducer: the less active half of the windows of 8, 4, 2 and 1 tokens (32 x 32 pixels)
# is dropped and passes unchanged; the others become one token each.
_base_ = "./upernet_scenes.py"
model = dict(
    neck=dict(reducer=[dict(type="mmvit_plugins.WindowPruning", window=window, ratio=0.5) for window in (8, 4, 2, 1)])
)
