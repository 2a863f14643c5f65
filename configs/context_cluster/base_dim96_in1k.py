# Context Cluster-B with 96 channels in stage 1 on ImageNet-1k: in1k.py with the larger arch.
# No figures found; the arch is from memory, see docs/context_cluster.md.
_base_ = "./in1k.py"
model = dict(backbone=dict(arch="base_dim96"), head=dict(in_channels=768))
