"""Data sets with one folder of images and one folder of labels for each task: your own, NYUD-v2, PASCAL-Context."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mmcv.transforms import BaseTransform
from mmengine.dataset import BaseDataset

from mmvit_plugins.structures import TASK_MAPS, find_task_map

from ..registry import DATASETS, TRANSFORMS
from .task_files import SUFFIXES, TaskFormat, read_task_label

__all__ = ["LoadTaskAnnotations", "NYUDv2MultiTaskDataset", "PASCALContextMultiTaskDataset", "TaskFolderDataset"]

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp")


@DATASETS.register_module()
class TaskFolderDataset(BaseDataset):
    """Images in one folder, and for each task a folder with labels of the same names, in the same subfolders.

    The name of a sample is the path of its image below the folder of images, without suffix. A label that is not there
    is no error: the sample has no label of that task. The suffix of a label file is found by looking (``SUFFIXES`` of
    task_files.py); what its numbers mean says ``formats``. The list of samples is sorted. A folder of another task is
    not searched, so that labels may lie below the images.

    Args:
        data_prefix: folder of the images (``img``) and of each task, below ``data_root``.
        ann_file: text file with one name a line; '' takes every image of the folder.
        name_ends: what files have after the name they share, before the suffix, by ``img`` and task: with
            ``dict(img='_leftImg8bit', semseg='_gtFine_labelTrainIds')`` the image ``bonn/1_leftImg8bit.png`` is called
            ``bonn/1``. Files without that end do not count.
        formats: arguments of :class:`~mmvit_plugins.datasets.task_files.TaskFormat` by task.
        fallback: a second folder for tasks, looked into where the first has no file.
        require: tasks whose label every sample must have; samples without are left out.
        metainfo: ``classes`` and ``palette`` of the semantic classes.
        data_root: the folder that all paths start from.
        filter_cfg: not used.
        indices: as in mmengine.
        serialize_data: as in mmengine.
        pipeline: begin with ``LoadImageFromFile`` and ``mmvit_plugins.LoadTaskAnnotations``.
        test_mode: as in mmengine.
        lazy_init: as in mmengine.
        max_refetch: as in mmengine.

    Raises:
        ValueError: unknown task or format, no images, or a task of which no image has a label.
        FileNotFoundError: ``ann_file`` names an image that is not there.
    """

    METAINFO: dict[str, Any] = dict()
    FORMATS: dict[str, dict[str, Any]] = {}

    def __init__(
        self,
        data_prefix: Mapping[str, str],
        ann_file: str = "",
        formats: Mapping[str, Mapping[str, Any]] | None = None,
        fallback: Mapping[str, str] | None = None,
        require: Sequence[str] = (),
        name_ends: Mapping[str, str] | None = None,
        metainfo: dict | None = None,
        data_root: str = "",
        filter_cfg: dict | None = None,
        indices: int | Sequence[int] | None = None,
        serialize_data: bool = True,
        pipeline: Sequence[dict | Callable] = (),
        test_mode: bool = False,
        lazy_init: bool = False,
        max_refetch: int = 1000,
    ) -> None:
        if "img" not in data_prefix or len(data_prefix) < 2:
            raise ValueError(
                f"data_prefix names the folder of the images (img) and of one task at least, got {dict(data_prefix)}"
            )
        for task in (*data_prefix, *(formats or {}), *(fallback or {}), *(name_ends or {}), *require):
            if task != "img":
                find_task_map(task)
        merged = {**self.FORMATS, **(formats or {})}
        self.formats = {task: TaskFormat(**values) for task, values in merged.items()}
        self.fallback = {task: os.path.join(data_root, folder) for task, folder in (fallback or {}).items()}
        self.require = tuple(require)
        self.name_ends = dict(name_ends or {})
        super().__init__(
            ann_file=ann_file,
            metainfo=metainfo,
            data_root=data_root,
            data_prefix=dict(data_prefix),
            filter_cfg=filter_cfg,
            indices=indices,
            serialize_data=serialize_data,
            pipeline=list(pipeline),
            test_mode=test_mode,
            lazy_init=lazy_init,
            max_refetch=max_refetch,
        )

    def load_data_list(self) -> list[dict]:
        """One entry for each image: its path and the paths of its labels."""
        images = self._files("img", self.data_prefix["img"], IMAGE_SUFFIXES)
        if not images:
            end = f" whose name ends in {self.name_ends['img']!r}" if self.name_ends.get("img") else ""
            raise ValueError(f"there is no image{end} in {os.path.abspath(self.data_prefix['img'])} or below it")
        names = sorted(images)
        if self.ann_file:
            names = [line.strip() for line in Path(self.ann_file).read_text(encoding="utf-8").splitlines()]
            names = [name for name in names if name]
            missing = [name for name in names if name not in images]
            if missing:
                raise FileNotFoundError(
                    f"{os.path.abspath(self.ann_file)} names {len(missing)} images that are not in "
                    f"{os.path.abspath(self.data_prefix['img'])}, the first is {missing[0]!r}"
                )
        labels = {task: self._label_files(task) for task in self.data_prefix if task != "img"}
        entries = []
        for number, name in enumerate(names):
            paths = {task: files[name] for task, files in labels.items() if name in files}
            if all(task in paths for task in self.require):
                entries.append(dict(img_path=images[name], img_id=number, task_paths=paths, task_formats=self.formats))
        self._check(entries, labels)
        return entries

    def _label_files(self, task: str) -> dict[str, str]:
        """Label file of each name. The first folder wins."""
        files = self._files(task, self.fallback[task], SUFFIXES) if task in self.fallback else {}
        return files | self._files(task, self.data_prefix[task], SUFFIXES)

    def _files(self, task: str, folder: str, suffixes: Sequence[str]) -> dict[str, str]:
        others = {os.path.abspath(other) for other in (*self.data_prefix.values(), *self.fallback.values())}
        return _by_name(folder, suffixes, self.name_ends.get(task, ""), others)

    def _check(self, entries: list[dict], labels: Mapping[str, Mapping[str, str]]) -> None:
        for task in labels:
            if not any(task in entry["task_paths"] for entry in entries):
                raise ValueError(
                    f"none of the {len(entries)} images has a label of {task} in "
                    f"{os.path.abspath(self.data_prefix[task])}: label files lie in the same subfolders and have the "
                    f"names of the images, then {self.name_ends.get(task, '')!r} (name_ends) and one of the suffixes "
                    f"{', '.join(SUFFIXES)}. Leave the task out of data_prefix if there are none."
                )


def _by_name(folder: str, suffixes: Sequence[str], end: str, others: Collection[str]) -> dict[str, str]:
    """{name: path} of the files in a folder and below; where several have a name, the first suffix wins.

    Args:
        folder: where to look. Links are followed, each folder is searched once, hidden ones are not.
        suffixes: of the files, in order of preference.
        end: what follows the name before the suffix.
        others: absolute paths of folders that are not searched.

    Raises:
        FileNotFoundError: there is no such folder.
    """
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"there is no folder {os.path.abspath(folder)}")
    found: dict[str, tuple[int, str]] = {}
    seen = {os.path.realpath(folder)}
    for place, folders, files in os.walk(folder, followlinks=True):
        below = {name: os.path.join(place, name) for name in sorted(folders) if not name.startswith(".")}
        below = {name: path for name, path in below.items() if os.path.abspath(path) not in others}
        folders[:] = [name for name, path in below.items() if os.path.realpath(path) not in seen]
        seen.update(os.path.realpath(below[name]) for name in folders)
        for file in files:
            rank = next((i for i, suffix in enumerate(suffixes) if file.lower().endswith(suffix)), None)
            if rank is None or file.startswith(".") or not file[: -len(suffixes[rank])].endswith(end):
                continue
            path = os.path.join(place, file)
            name = os.path.relpath(path, folder)[: -len(end + suffixes[rank])].replace(os.sep, "/")
            found[name] = min(found.get(name, (rank, path)), (rank, path))
    return {name: path for name, (_, path) in found.items()}


@TRANSFORMS.register_module()
class LoadTaskAnnotations(BaseTransform):
    """Load the labels of a :class:`TaskFolderDataset`'s sample under the keys of the dense tasks.

    In training it follows the loading of the image; in a test pipeline it comes after the image is resized, so that
    metrics compare at the original size.

    Args:
        tasks: which; None loads all that the sample has.

    Raises:
        ValueError: unknown task; in use: a label of another size than its image.
    """

    def __init__(self, tasks: Sequence[str] | None = None) -> None:
        for task in tasks or ():
            find_task_map(task)
        self.tasks = None if tasks is None else tuple(tasks)

    def transform(self, results: dict) -> dict:
        """Add the label maps."""
        for task, path in results.get("task_paths", {}).items():
            if self.tasks is not None and task not in self.tasks:
                continue
            label = read_task_label(task, path, results["task_formats"].get(task), tuple(results["ori_shape"]))
            if label.shape[:2] != tuple(results["ori_shape"]):
                raise ValueError(
                    f"{path} has {label.shape[0]} x {label.shape[1]} pixels, its image {results['img_path']} "
                    f"{results['ori_shape'][0]} x {results['ori_shape'][1]}"
                )
            results[TASK_MAPS[task].results_key] = np.ascontiguousarray(label)
        return results

    def __repr__(self) -> str:
        return f"LoadTaskAnnotations(tasks={self.tasks})"


_NYUD_CLASSES = (
    "wall", "floor", "cabinet", "bed", "chair", "sofa", "table", "door", "window", "bookshelf", "picture", "counter",
    "blinds", "desk", "shelves", "curtain", "dresser", "pillow", "mirror", "floor mat", "clothes", "ceiling", "books",
    "refrigerator", "television", "paper", "towel", "shower curtain", "box", "whiteboard", "person", "night stand",
    "toilet", "sink", "lamp", "bathtub", "bag", "other structure", "other furniture", "other prop",
)  # fmt: skip
_VOC_CLASSES = (
    "background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "dining table",
    "dog", "horse", "motorbike", "person", "potted plant", "sheep", "sofa", "train", "tv monitor",
)  # fmt: skip


@DATASETS.register_module()
class NYUDv2MultiTaskDataset(TaskFolderDataset):
    """NYUD-v2 as the two multi-task repositories hand it out (docs/multitask.md): 40 classes, depth, normals,
    boundaries. Label 0 is background and ignored.

    Arguments are those of :class:`TaskFolderDataset`.
    """

    METAINFO = dict(classes=_NYUD_CLASSES)
    FORMATS = dict(semseg=dict(reduce_zero_label=True))


@DATASETS.register_module()
class PASCALContextMultiTaskDataset(TaskFolderDataset):
    """PASCAL-Context as the two multi-task repositories hand it out (docs/multitask.md): 21 classes, six human parts,
    distilled saliency and normals, boundaries of the context labels. Images without people have no label of parts.

    Arguments are those of :class:`TaskFolderDataset`.
    """

    METAINFO = dict(
        classes=_VOC_CLASSES,
        part_classes=("background", "head", "torso", "upper arms", "lower arms", "upper legs", "lower legs"),
    )
    FORMATS = dict(boundary=dict(from_labels=True), parts=dict(need_person=True), saliency=dict(values="grey"))
