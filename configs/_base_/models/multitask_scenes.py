# The five dense tasks of the built-in scenes. Ours: the usual weights (docs/multitask.md) but for depth, whose metres
# are an order of magnitude larger than in a room.
_base_ = "./multitask.py"
model = dict(
    tasks=dict(
        semseg=dict(type="mmvit_plugins.SegmentationTask", num_classes=6, loss_weight=1.0),
        depth=dict(type="mmvit_plugins.DepthTask", loss_weight=0.2),
        normals=dict(type="mmvit_plugins.NormalsTask", loss_weight=10.0),
        boundary=dict(type="mmvit_plugins.BoundaryTask", loss_weight=50.0),
        saliency=dict(type="mmvit_plugins.SaliencyTask", loss_weight=5.0),
    ),
)
