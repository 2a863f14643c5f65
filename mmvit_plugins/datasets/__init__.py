"""Datasets and loading steps. Importing this registers them, and the ``scenes://`` addresses, with mmengine."""

from .digits import DigitsDataset
from .load_scene import LoadScene
from .scenes_dataset import ScenesClsDataset, ScenesDetDataset, ScenesMultiTaskDataset, ScenesSegDataset

__all__ = [
    "DigitsDataset",
    "LoadScene",
    "ScenesClsDataset",
    "ScenesDetDataset",
    "ScenesMultiTaskDataset",
    "ScenesSegDataset",
]
