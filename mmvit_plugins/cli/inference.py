"""A trained model and single images, the same way for classification, detection and segmentation."""

from __future__ import annotations

import importlib
import io
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmvit_plugins.environment import HOSTS

from .config_loading import replace_sync_batch_norm, walk_datasets
from .errors import UserError
from .file_checks import IMAGE_SUFFIXES

if TYPE_CHECKING:
    import numpy as np
    from mmengine.config import Config

__all__ = [
    "Predictor",
    "bird_eye_step",
    "choose_device",
    "collect_images",
    "output_stems",
    "quiet_hosts",
    "read_image",
]


@contextmanager
def quiet_hosts(scope: str | None = None) -> Iterator[None]:
    """Keep back what hosts say about every parameter and every optional part, which hides the tool's own lines.

    Args:
        scope: the host that is about to be imported.
    """
    from mmengine.logging import MMLogger

    if scope in HOSTS:
        with redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module(f"{scope}.datasets")
    logger = MMLogger.get_current_instance()
    level = logger.level
    logger.setLevel("ERROR")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=UserWarning, module=r"mm(cv|engine|seg|det|pretrain)(\.|$)")
            yield
    finally:
        logger.setLevel(level)


def collect_images(inputs: Iterable[str]) -> list[Path]:
    """Image files out of files and folders (searched in depth, sorted), each once.

    Raises:
        UserError: an input does not exist, or a folder holds no image.
    """
    images: list[Path] = []
    for name in inputs:
        path = Path(name)
        if path.is_dir():
            found = sorted(file for file in path.rglob("*") if file.suffix.lower() in IMAGE_SUFFIXES and file.is_file())
            if not found:
                suffixes = ", ".join(IMAGE_SUFFIXES)
                raise UserError(f"no image in {path.absolute()}; looked for {suffixes}, in subfolders too")
            images += found
        elif path.is_file():
            images.append(path)
        else:
            raise UserError(f"there is no image or folder {path.absolute()} (given as {name!r})")
    return list(dict.fromkeys(path.absolute() for path in images))


def output_stems(images: list[Path]) -> list[Path]:
    """For each image a relative path without suffix for its outputs: unique, in the folders below their common one.

    ``a/x.jpg``, ``b/x.jpg`` and ``b/x.png`` become ``a/x``, ``b/x_jpg`` and ``b/x_png``.
    """
    if not images:
        return []
    common = Path(os.path.commonpath([path.parent for path in images]))
    stems = [path.relative_to(common).with_suffix("") for path in images]
    repeated = {stem for stem in stems if stems.count(stem) > 1}
    named = [
        stem.with_name(f"{path.stem}_{path.suffix[1:]}") if stem in repeated else stem
        for stem, path in zip(stems, images, strict=True)
    ]
    used: set[Path] = set()
    for index, stem in enumerate(named):
        number = 2
        while named[index] in used:  # x_jpg.png beside x.jpg and x.png
            named[index] = stem.with_name(f"{stem.name}_{number}")
            number += 1
        used.add(named[index])
    return named


def read_image(path: Path) -> np.ndarray:
    """(H, W, 3) uint8 RGB, turned as its EXIF data say, just as the hosts' loaders see it.

    Raises:
        DamagedFileError: the file is no whole image.
    """
    import mmcv
    from PIL import Image

    from mmvit_plugins.engine import DamagedFileError

    try:
        with Image.open(path) as image:
            image.load()
        pixels = mmcv.imread(str(path), channel_order="rgb")
    except Exception as error:
        raise DamagedFileError(f"cannot read image {path}: {type(error).__name__}: {error}") from error
    if pixels is None:
        raise DamagedFileError(f"cannot read image {path}: OpenCV does not decode it")
    return pixels


def choose_device(name: str) -> str:
    """``auto`` as the GPU if there is one; anything else checked.

    Raises:
        UserError: the device does not exist here.
    """
    import torch

    if name == "auto":
        return "cuda:0" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UserError(f"--device takes auto, cpu, cuda or cuda:N, got {name!r}") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(f"--device {name}: this machine has {torch.cuda.device_count()} CUDA devices; use --device cpu")
    return name


class Predictor:
    """The model of a config with the weights of a checkpoint, called with image files.

    Args:
        cfg: config of any of the three tasks.
        checkpoint: file or URL.
        device: such as ``cpu`` or ``cuda:0``.
        pipeline: transforms of the input; None: the config's test pipeline for an image file.

    Raises:
        DamagedFileError: the checkpoint cannot be read.
        ValueError: nothing in it fits the model, or a whole part of the model is missing in it.
    """

    def __init__(
        self, cfg: Config, checkpoint: str, device: str = "cpu", pipeline: Sequence[dict] | None = None
    ) -> None:
        from mmengine.dataset import Compose
        from mmengine.registry import MODELS, init_default_scope
        from mmengine.runner import load_checkpoint

        from mmvit_plugins.engine import reading_checkpoint, report_match

        init_default_scope(cfg.get("default_scope") or "mmengine")
        replace_sync_batch_norm(cfg.model)
        if cfg.get("data_preprocessor") is not None:  # at the top of MMPretrain's configs; mmengine's Runner moves it
            cfg.model.setdefault("data_preprocessor", cfg.data_preprocessor)
        self.model = MODELS.build(cfg.model)
        with reading_checkpoint(checkpoint):
            state = load_checkpoint(self.model, checkpoint, map_location="cpu")
        self.report = report_match(self.model, state, checkpoint, whole=True)
        if hasattr(self.model, "load_meta"):  # thresholds of early exit
            self.model.load_meta(state.get("meta") or {})
        self.model.to(device).eval()
        self.meta = _dataset_meta(cfg, state)
        self.pipeline: Callable[[dict], dict] = Compose(_image_pipeline(cfg) if pipeline is None else list(pipeline))
        self._count = 0

    def __call__(self, path: Path) -> Any:
        """The data sample with the predictions for the image at ``path``, on the CPU."""
        self._count += 1
        # MMDetection scales masks back by scale_factor, which only a resize in the pipeline would set.
        return self.run(self.pipeline(dict(img_path=str(path), img_id=self._count, scale_factor=(1.0, 1.0))))

    def run(self, data: dict) -> Any:
        """The data sample with the predictions for one sample that has gone through the pipeline, on the CPU."""
        import torch
        from mmengine.dataset import pseudo_collate

        with torch.no_grad():
            return self.model.test_step(pseudo_collate([data]))[0].cpu()


def bird_eye_step(cfg: Config) -> dict | None:
    """The step of the test pipeline that says which range the cells of a map from above cover; None for images."""
    for dataset in walk_datasets((cfg.get("test_dataloader") or {}).get("dataset")):
        for step in dataset.get("pipeline") or []:
            if "point_cloud_range" in step and "cells" in step:
                return step
    return None


def _dataset_meta(cfg: Config, checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """Class names and palette: those stored with the weights, else those of the config's dataset."""
    meta = (checkpoint.get("meta") or {}).get("dataset_meta") or {}
    if meta.get("classes"):
        return dict(meta)
    from mmengine.registry import DATASETS

    for loader in ("test_dataloader", "val_dataloader", "train_dataloader"):
        for dataset in walk_datasets((cfg.get(loader) or {}).get("dataset")):
            kind = DATASETS.get(dataset.get("type") or "")
            found = {**(getattr(kind, "METAINFO", None) or {}), **(dataset.get("metainfo") or {})}
            if found.get("classes"):
                return found
    return {}


def _image_pipeline(cfg: Config) -> list[dict]:
    """The config's test pipeline for an image file: without annotations, and with a loader of files.

    Raises:
        UserError: the config has no test pipeline.
    """
    datasets = walk_datasets((cfg.get("test_dataloader") or {}).get("dataset"))
    pipeline = next((dataset["pipeline"] for dataset in datasets if "pipeline" in dataset), None)
    if not pipeline:
        raise UserError(f"{cfg.filename} has no test_dataloader with a pipeline, which says how to prepare an image")
    kept = [dict(step) for step in pipeline if not ("Load" in str(step["type"]) and "Annotation" in str(step["type"]))]
    if not any("LoadImage" in str(step["type"]) for step in kept):
        # Built-in scenes render their image instead of loading it.
        kept = [step for step in kept if not str(step["type"]).rpartition(".")[2].startswith("Load")]
        kept.insert(0, dict(type="LoadImageFromFile"))
    return kept
