"""Datasets and loading steps. Importing this registers them, and the ``scenes://`` addresses, with mmengine."""

from .digits import DigitsDataset
from .load_scene import LoadScene
from .pack_multi_task import PackMultiTaskInputs
from .scenes_bev import FlipPoints, LoadSceneBEV, PackPoints, ScenesBEVDataset
from .scenes_dataset import ScenesClsDataset, ScenesDetDataset, ScenesMultiTaskDataset, ScenesSegDataset
from .task_transforms import TaskCrop, TaskFlip, TaskResize, TaskRotate

__all__ = [
    "DigitsDataset",
    "FlipPoints",
    "LoadScene",
    "LoadSceneBEV",
    "PackMultiTaskInputs",
    "PackPoints",
    "ScenesBEVDataset",
    "ScenesClsDataset",
    "ScenesDetDataset",
    "ScenesMultiTaskDataset",
    "ScenesSegDataset",
    "TaskCrop",
    "TaskFlip",
    "TaskResize",
    "TaskRotate",
]
