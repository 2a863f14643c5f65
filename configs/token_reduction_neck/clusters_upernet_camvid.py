# As upernet_camvid.py with context clusters as reducer: 2 x 2 centres in each of 4 x 4 regions (2 x 2 on the last map), 208 tokens
# whatever the size of the image.
_base_ = "./upernet_camvid.py"
model = dict(
    neck=dict(
        reducer=[dict(type="mmvit_plugins.ContextClusters", regions=side, centres=2) for side in (4, 4, 4, 2)],
    ),
)
