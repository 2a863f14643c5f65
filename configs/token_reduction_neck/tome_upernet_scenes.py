# As upernet_scenes.py with token merging as reducer: every token goes to the most similar of fixed ones, one in each cell of 32 x 32
# pixels anywhere in the image (r: as many as there are).
_base_ = "./upernet_scenes.py"
model = dict(
    neck=dict(
        reducer=[
            dict(type="mmvit_plugins.TokenMerging", mode="grid", stride=(side, side), r=1_000_000)
            for side in (8, 4, 2, 1)
        ]
    )
)
