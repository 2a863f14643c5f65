# The four tasks of NYUD-v2 with the weights of both reference implementations (docs/multitask.md).
_base_ = "./multitask.py"
model = dict(
    tasks=dict(
        semseg=dict(type="mmvit_plugins.SegmentationTask", num_classes=40, loss_weight=1.0),
        depth=dict(type="mmvit_plugins.DepthTask", loss_weight=1.0),
        normals=dict(type="mmvit_plugins.NormalsTask", loss_weight=10.0),
        boundary=dict(type="mmvit_plugins.BoundaryTask", loss_weight=50.0),
    ),
)
