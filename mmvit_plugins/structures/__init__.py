"""Data structures that the host libraries lack."""

from .multi_task_sample import MultiTaskSample
from .task_maps import TASK_MAPS, TaskMap, find_task_map

__all__ = ["TASK_MAPS", "MultiTaskSample", "TaskMap", "find_task_map"]
