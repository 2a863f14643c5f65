# The five tasks of PASCAL-Context with the weights of both reference implementations (docs/multitask.md).
_base_ = "./multitask.py"
model = dict(
    tasks=dict(
        semseg=dict(type="mmvit_plugins.SegmentationTask", num_classes=21, loss_weight=1.0),
        parts=dict(type="mmvit_plugins.SegmentationTask", num_classes=7, loss_weight=2.0),
        saliency=dict(type="mmvit_plugins.SaliencyTask", channels=1, loss_weight=5.0),
        normals=dict(type="mmvit_plugins.NormalsTask", loss_weight=10.0),
        boundary=dict(type="mmvit_plugins.BoundaryTask", loss_weight=50.0),
    ),
)
