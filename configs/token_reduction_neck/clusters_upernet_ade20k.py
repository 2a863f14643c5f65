# As upernet_ade20k.py with context clusters as reducer: 2 x 2 centres in each of 8, 8, 4 and 4 regions per side, 640 tokens.
_base_ = "./upernet_ade20k.py"
model = dict(
    neck=dict(
        reducer=[dict(type="mmvit_plugins.ContextClusters", regions=side, centres=2) for side in (8, 8, 4, 4)],
    ),
)
