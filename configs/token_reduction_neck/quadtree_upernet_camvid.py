# As upernet_camvid.py with quadtrees over the maps as reducer: as many leaves as a level has cells of 32 x 32 pixels, small where
# features differ (64 to 4, 8, 16 or 32 pixels).
_base_ = "./upernet_camvid.py"
model = dict(
    neck=dict(
        reducer=[
            dict(type="mmvit_plugins.QuadtreeReducer", num_tokens=share, depth=depth)
            for share, depth in ((1 / 64, 4), (1 / 16, 3), (1 / 4, 2), (1.0, 1))
        ]
    )
)
