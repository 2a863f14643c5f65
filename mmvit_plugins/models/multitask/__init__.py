"""Models with one backbone and several tasks."""

from .data_preprocessor import MultiTaskDataPreprocessor
from .dense_tasks import BoundaryTask, DenseTask, DepthTask, NormalsTask, SaliencyTask, SegmentationTask
from .instance_task import InstanceTask
from .multi_task_model import MultiTaskModel
from .weighting import UncertaintyWeighting

__all__ = [
    "BoundaryTask",
    "DenseTask",
    "DepthTask",
    "InstanceTask",
    "MultiTaskDataPreprocessor",
    "MultiTaskModel",
    "NormalsTask",
    "SaliencyTask",
    "SegmentationTask",
    "UncertaintyWeighting",
]
