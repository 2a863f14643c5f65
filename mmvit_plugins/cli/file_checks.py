"""Look for data and checkpoints before anything is built, so that what is missing is said in the user's terms."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmvit_plugins.environment import configs_folder

from .config_loading import walk_datasets
from .errors import UserError

if TYPE_CHECKING:
    from mmengine.config import Config

__all__ = ["SCENES_CONFIGS", "check_checkpoint", "check_datasets", "check_pretrained"]

#: The config of each host that runs without any data.
SCENES_CONFIGS = {
    "mmseg": "configs/stvit/upernet_scenes.py",
    "mmdet": "configs/stvit/mask_rcnn_scenes.py",
    "mmpretrain": "configs/stvit/cls_scenes.py",
}
# What the dataset's type, its root or the config's name says -> where the data come from.
SOURCES = {
    "ade20k|adechallenge": "download http://data.csail.mit.edu/places/ADEchallenge/ADEChallengeData2016.zip and "
    "unpack it there",
    "cityscapes": "register at https://www.cityscapes-dataset.com, unpack leftImg8bit and gtFine there, and make the "
    "label maps with MMSegmentation's tools/dataset_converters/cityscapes.py",
    "coco": "download train2017.zip, val2017.zip and annotations_trainval2017.zip from "
    "https://cocodataset.org/#download and unpack them there",
    "imagenet|in1k": "download ILSVRC2012 from https://image-net.org and sort it into one folder per class below "
    "train/ and val/",
    "nyud": "download NYUD_MT of a multi-task repository and unpack it there (docs/multitask.md)",
    "pascalcontext|pascal_mt": "download PASCAL_MT of a multi-task repository and unpack it there (docs/multitask.md)",
    "camvid": "download CamVid (http://mi.eng.cam.ac.uk/research/projects/VideoRec/CamVid) and lay it out as "
    "configs/_base_/datasets/camvid.py says",
}
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp", ".ppm")


def check_datasets(cfg: Config, loaders: Iterable[str]) -> None:
    """Check that the files and folders that the datasets of ``loaders`` name are there.

    Args:
        cfg: the whole config.
        loaders: such as ``("train_dataloader", "val_dataloader")``.

    Raises:
        UserError: something is missing or empty: which path, how to get it, and which config runs without it.
    """
    missing: dict[str, str] = {}
    sources: set[str] = set()
    for loader in loaders:
        for dataset in walk_datasets((cfg.get(loader) or {}).get("dataset")):
            for path in _paths(dataset):
                reason = _reason(path)
                if reason:
                    missing[os.path.abspath(path)] = reason
                    sources.update(_sources(dataset, str(cfg.filename)))
    if not missing:
        return
    listed = "\n".join(f"  {path} ({reason})" for path, reason in missing.items())
    lines = [f"the data of {cfg.filename} are not there:\n{listed}"]
    lines += [f"To get them: {source}." for source in sorted(sources)]
    lines.append("Data somewhere else: --data-root DIR.")
    checkout = configs_folder().parent
    inside = [path for path in missing if (checkout / os.path.relpath(path)).exists() and Path.cwd() != checkout]
    if inside:
        lines.append(f"There are data of that name in {checkout}: start the tool there, or give --data-root.")
    several = str((cfg.get("model") or {}).get("type")).endswith("MultiTaskModel")
    scenes = "configs/multitask/stvit_scenes.py" if several else SCENES_CONFIGS.get(cfg.get("default_scope"))
    if scenes:
        lines.append(f"Without any data: {scenes} (built-in scenes).")
    raise UserError("\n".join(lines))


def _paths(dataset: dict) -> Iterator[str]:
    """The local paths that a dataset config names. Paths of other storage (``s3://``) are left to their backend."""
    root = str(dataset.get("data_root") or "")
    prefixes = dataset.get("data_prefix") or {}
    prefixes = list(prefixes.values()) if isinstance(prefixes, dict) else [prefixes]
    names = [str(name) for name in (*prefixes, dataset.get("ann_file")) if name and isinstance(name, (str, Path))]
    if root and not os.path.exists(root):
        names = [""]  # one line about the root, not one about each folder in it
    elif root and not names:
        names = [""]
    for name in names:
        path = os.path.join(root, name) if root else name
        if "://" not in path and not dataset.get("backend_args"):
            yield path


def _reason(path: str) -> str | None:
    """Why ``path`` cannot be used, None if it can."""
    if not os.path.exists(path):
        # mmpretrain and mmdet take a file-name prefix as well as a folder.
        return None if _is_name_prefix(path) else "missing"
    if os.path.isdir(path) and not any(files for _, _, files in os.walk(path, followlinks=True)):
        return "an empty folder"
    return None


def _is_name_prefix(path: str) -> bool:
    folder, stem = os.path.split(path)
    return bool(stem) and os.path.isdir(folder) and any(name.startswith(stem) for name in os.listdir(folder))


def _sources(dataset: dict, config: str) -> list[str]:
    names = f"{dataset.get('type')} {dataset.get('data_root')} {Path(config).name}"
    return [source for pattern, source in SOURCES.items() if re.search(pattern, names, re.IGNORECASE)]


def check_checkpoint(path: str) -> None:
    """Check that ``path`` is a file or a URL.

    Raises:
        UserError: it is not there; the message lists checkpoints near it.
    """
    if "://" in path or os.path.isfile(path):
        return
    absolute = Path(path).absolute()
    folder = absolute if absolute.is_dir() else absolute.parent
    kind = "is a folder" if absolute.is_dir() else "does not exist"
    found = sorted(file.name for file in folder.glob("*.pth")) if folder.is_dir() else []
    near = f"Checkpoints in {folder}: {', '.join(found)}." if found else f"There is no *.pth file in {folder}."
    raise UserError(
        f"checkpoint {absolute} {kind} (given as {path!r}, relative paths start at {os.getcwd()}). {near} "
        "tools/train.py writes checkpoints into its work folder; official weights come from the authors' pages, see "
        "configs/stvit/README.md."
    )


def check_pretrained(cfg: Config) -> None:
    """Check the files of ``init_cfg`` in the model, which are needed when training starts.

    Raises:
        UserError: a file is missing: which, for which part, and how to start without it.
    """
    for place, checkpoint in _init_checkpoints(cfg.get("model"), "model"):
        if "://" in checkpoint or os.path.isfile(checkpoint):
            continue
        scenes = SCENES_CONFIGS.get(cfg.get("default_scope"))
        raise UserError(
            f"the pretrained weights {os.path.abspath(checkpoint)} ({place}.init_cfg) do not exist. Download the "
            "official file (configs/stvit/README.md says where) to that place, or name another one: --cfg-options "
            f"{place}.init_cfg.checkpoint=FILE. To train from scratch: --cfg-options {place}.init_cfg=None."
            + (f" Without weights and data: {scenes}." if scenes else "")
        )


def _init_checkpoints(node: Any, place: str) -> Iterator[tuple[str, str]]:
    """(place in the config, checkpoint) of every ``init_cfg`` that loads a file."""
    if isinstance(node, dict):
        init = node.get("init_cfg")
        for one in init if isinstance(init, (list, tuple)) else [init]:
            if isinstance(one, dict) and isinstance(one.get("checkpoint"), str):
                yield place, one["checkpoint"]
        for key, value in node.items():
            if key != "init_cfg":
                yield from _init_checkpoints(value, f"{place}.{key}")
    elif isinstance(node, (list, tuple)):
        for index, value in enumerate(node):
            yield from _init_checkpoints(value, f"{place}.{index}")
