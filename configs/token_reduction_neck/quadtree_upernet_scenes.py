# As upernet_scenes.py with quadtrees over the maps as reducer: 16 leaves for each level, small where features differ.
_base_ = "./upernet_scenes.py"
model = dict(
    neck=dict(
        reducer=[dict(type="mmvit_plugins.QuadtreeReducer", num_tokens=16, depth=depth) for depth in (4, 3, 2, 1)]
    )
)
