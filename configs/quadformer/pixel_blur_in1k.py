# As in1k.py with the paper's baseline scorer, which needs no weights.
_base_ = "./in1k.py"
model = dict(backbone=dict(scorer=dict(_delete_=True, type="mmvit_plugins.PixelBlurScorer")))
