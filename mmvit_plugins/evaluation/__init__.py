"""Metrics that the host libraries lack. Segmentation, detection and classification use the hosts' own metrics."""

from .boundary_metric import BoundaryMetric
from .exit_accuracy import ExitAccuracy
from .geometry_metrics import DepthErrorMetric, NormalsMetric
from .instance_metric import InstanceMetric
from .label_metric import LabelMetric
from .multi_task_gain import multi_task_gain
from .saliency_metric import SaliencyMetric

__all__ = [
    "BoundaryMetric",
    "DepthErrorMetric",
    "ExitAccuracy",
    "InstanceMetric",
    "LabelMetric",
    "NormalsMetric",
    "SaliencyMetric",
    "multi_task_gain",
]
