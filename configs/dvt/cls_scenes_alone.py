# The largest model of cls_scenes.py: the 8 x 8 tokens alone, without cascade and reuse, trained as long: what early exit is compared with.
_base_ = "./cls_scenes.py"
model = dict(backbone=dict(token_grids=(8,)))
