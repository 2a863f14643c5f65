"""Datasets and loading steps. Importing this registers them, and the ``scenes://`` addresses, with mmengine."""

from .digits import DigitsDataset
from .load_scene import LoadScene
from .pack_multi_task import PackDenseTaskInputs
from .scenes_bev import FlipPoints, LoadSceneBEV, PackPoints, ScenesBEVDataset
from .scenes_dataset import ScenesClsDataset, ScenesDetDataset, ScenesMultiTaskDataset, ScenesSegDataset
from .task_folders import (
    LoadTaskAnnotations,
    NYUDv2MultiTaskDataset,
    PASCALContextMultiTaskDataset,
    TaskFolderDataset,
)
from .task_transforms import TaskCrop, TaskFlip, TaskResize, TaskRotate

__all__ = [
    "DigitsDataset",
    "FlipPoints",
    "LoadScene",
    "LoadSceneBEV",
    "LoadTaskAnnotations",
    "NYUDv2MultiTaskDataset",
    "PASCALContextMultiTaskDataset",
    "PackDenseTaskInputs",
    "PackPoints",
    "ScenesBEVDataset",
    "ScenesClsDataset",
    "ScenesDetDataset",
    "ScenesMultiTaskDataset",
    "ScenesSegDataset",
    "TaskCrop",
    "TaskFlip",
    "TaskFolderDataset",
    "TaskResize",
    "TaskRotate",
]
