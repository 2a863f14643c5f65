# As upernet_scenes.py with token merging as reducer: every token goes to the most similar of 4 x 4 fixed ones, so that 16 are
# left of each level (all there are in stage 4).
_base_ = "./upernet_scenes.py"
model = dict(
    neck=dict(
        reducer=[
            dict(type="mmvit_plugins.TokenMerging", mode="grid", stride=(8, 8), r=1008),
            dict(type="mmvit_plugins.TokenMerging", mode="grid", stride=(4, 4), r=240),
            dict(type="mmvit_plugins.TokenMerging", mode="grid", stride=(2, 2), r=48),
            dict(type="mmvit_plugins.TokenMerging", mode="grid", stride=(1, 1), r=0),
        ]
    )
)
