# As upernet_scenes.py with context clusters as reducer: 2 x 2 centres in each of 2 x 2 regions, 16 tokens for each level.
_base_ = "./upernet_scenes.py"
model = dict(neck=dict(reducer=[dict(type="mmvit_plugins.ContextClusters", regions=2, centres=2)] * 4))
