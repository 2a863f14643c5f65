"""Read the label of a dense task from the file formats in which such labels are handed around."""

from __future__ import annotations

import io
import os
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from mmengine.fileio import get

from mmvit_plugins.structures import find_task_map

__all__ = ["SUFFIXES", "TaskFormat", "label_boundaries", "read_task_label"]

#: Tried in this order.
SUFFIXES = (".png", ".npy", ".mat", ".npz", ".jpg", ".tif", ".tiff", ".bmp")

# PASCAL-Part's names of the parts of a person, in six groups as in Chen et al. (CVPR 2014) and all work after it.
PERSON_PARTS = {
    1: "head leye reye lear rear lebrow rebrow nose mouth hair",
    2: "torso neck",
    3: "luarm ruarm",
    4: "llarm rlarm lhand rhand",
    5: "luleg ruleg",
    6: "llleg rlleg lfoot rfoot",
}
_PART_LABELS = {name: label for label, names in PERSON_PARTS.items() for name in names.split()}


@dataclass(frozen=True)
class TaskFormat:
    """What the numbers in a file mean.

    Attributes:
        scale: depth in the file for one metre, such as 1000 for 16-bit pictures in millimetres.
        axes: sign of each component of the normals, to bring them to x right, y down, z forward.
        reduce_zero_label: class 0 means "no label", and the classes count from 1.
        from_labels: boundaries are to be drawn where this label map changes.
        key: name of the variable in a ``.mat`` or ``.npz`` file; the only one of a fitting shape is found without.
        need_person: a parts map without any part becomes "no label": the picture shows nobody.
        values: what whole numbers mean in boundaries and saliency. 'labels': 0 no, 1 yes, 255 unknown. 'grey': a
            picture, yes above the middle of its type's range. 'auto': labels if a file holds nothing but 0, 1 and 255,
            a 1 or no number above 0 among them, and is no JPEG; else grey, so that 0 and 255 alone are no and yes.

    Raises:
        ValueError: ``values`` is none of these.
    """

    scale: float | None = None
    axes: tuple[int, int, int] = (1, 1, 1)
    reduce_zero_label: bool = False
    from_labels: bool = False
    key: str | None = None
    need_person: bool = False
    values: str = "auto"

    def __post_init__(self) -> None:
        if self.values not in ("auto", "labels", "grey"):
            raise ValueError(f"values of boundaries and saliency are 'auto', 'labels' or 'grey', got {self.values!r}")


def read_task_label(
    task: str, path: str, form: TaskFormat | None = None, shape: tuple[int, int] | None = None
) -> np.ndarray:
    """The label map at ``path`` in the form of :data:`~mmvit_plugins.structures.TASK_MAPS`.

    * ``semseg``, ``parts``: class numbers, uint8. A ``.mat`` file of PASCAL-Part becomes six groups of parts.
    * ``depth``: float32 metres, 0 unknown.
    * ``normals``: float32 unit vectors; 8-bit pictures hold ``(n + 1) 127.5`` as RGB. Vectors that are not about one
      long are unknown, as are the pictures' middle grey and black.
    * ``boundary``, ``saliency``: 0, 1, and 255 for unknown, uint8. Fractions from 0 to 1 are probabilities, of which
      those above 0.5 count; whole numbers as ``form.values`` says.

    Args:
        task: name of the task.
        path: file or URL.
        form: what the numbers mean.
        shape: height and width of the image, for a PASCAL-Part file without objects, which does not say them.

    Raises:
        ValueError: the file's format, shape or values do not fit the task.
    """
    form = form or TaskFormat()
    array = _read_array(path, form.key, task == "parts", shape)
    if task == "normals":
        return _normals(array, form, path)
    if array.ndim == 3 and array.shape[-1] in (3, 4) and (array[..., :1] == array[..., :3]).all():
        array = array[..., 0]  # a grey picture stored in colour
    if array.ndim != 2:
        raise ValueError(f"{path} holds an array of shape {array.shape}; {task} needs height x width")
    if task == "depth":
        return _depth(array, form, path)
    if task == "boundary" and form.from_labels:
        return label_boundaries(array)
    if task in ("boundary", "saliency"):
        return _mask(array, task, form, path)
    return _classes(array, task, form, path)


def label_boundaries(labels: np.ndarray) -> np.ndarray:
    """(H, W) labels -> uint8 (H, W): 1 where the pixel to the right, below, or right below has another label."""
    padded = np.pad(labels, ((0, 1), (0, 1)), mode="edge")
    inner = padded[:-1, :-1]
    changes = (inner != padded[:-1, 1:]) | (inner != padded[1:, :-1]) | (inner != padded[1:, 1:])
    return changes.astype(np.uint8)


def _read_array(path: str, key: str | None, part_annotations: bool, shape: tuple[int, int] | None) -> np.ndarray:
    # Here: the engine needs torch, which reading files alone does not.
    from mmvit_plugins.engine import DamagedFileError, check_whole_image

    check_whole_image(path)
    content, suffix = get(path), Path(path).suffix.lower()
    if suffix not in (".npy", ".npz", ".mat"):
        return _decode_picture(content, suffix, path)
    try:
        variables = _decode_arrays(content, suffix)
    except NotImplementedError as error:
        raise ValueError(f"{path} is a MATLAB 7.3 file: save it again with -v7, or as .npy") from error
    except (OSError, EOFError, ValueError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        raise DamagedFileError(f"cannot read {os.path.abspath(path)}: {error}") from error
    if part_annotations and "anno" in variables:
        return _person_parts(variables["anno"], path, shape)
    return _choose(variables, key, path)


def _decode_arrays(content: bytes, suffix: str) -> dict[str, np.ndarray]:
    """The named arrays in a file of numpy or MATLAB."""
    if suffix == ".npy":
        return {"array": np.load(io.BytesIO(content), allow_pickle=False)}
    if suffix == ".npz":
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    from scipy.io import loadmat  # comes with MMSegmentation and MMDetection

    variables = loadmat(io.BytesIO(content), squeeze_me=True, struct_as_record=False)
    return {name: value for name, value in variables.items() if name[:2] != "__"}


def _decode_picture(content: bytes, suffix: str, path: str) -> np.ndarray:
    """(H, W) or (H, W, 3) RGB, in the type of the file."""
    array = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_UNCHANGED)
    if array is None:
        raise ValueError(f"{path} is no picture that OpenCV reads; labels are {', '.join(SUFFIXES)}")
    if suffix == ".png" and array.ndim == 3 and content[25:26] == b"\x03":
        # A PNG with a palette: its numbers are the labels, not its colours.
        from PIL import Image

        return np.array(Image.open(io.BytesIO(content)))
    return array[..., 2::-1] if array.ndim == 3 else array


def _choose(variables: dict[str, np.ndarray], key: str | None, path: str) -> np.ndarray:
    if key is not None:
        if key not in variables:
            raise ValueError(f"{path} has no variable {key!r}, only {', '.join(variables)}")
        return np.asarray(variables[key])
    maps = {name: value for name, value in variables.items() if getattr(value, "ndim", 0) in (2, 3)}
    if len(maps) != 1:
        raise ValueError(f"{path} has {len(maps)} arrays ({', '.join(variables)}): name one with formats=dict(key=...)")
    return next(iter(maps.values()))


def _person_parts(annotation: object, path: str, shape: tuple[int, int] | None) -> np.ndarray:
    """The parts of all people of a PASCAL-Part annotation, uint8 (H, W); 255 where people have no parts."""
    objects = np.atleast_1d(annotation.objects)
    if objects.size:
        shape = np.asarray(objects[0].mask).shape
    if shape is None:
        raise ValueError(f"{path} has no objects, and so no size: pass the image's height and width as shape")
    labels = np.zeros(shape, dtype=np.uint8)
    for thing in objects:
        if getattr(thing, "class") != "person":
            continue
        parts = np.atleast_1d(thing.parts)
        if not parts.size:
            labels[np.asarray(thing.mask) > 0] = 255
        for part in parts:
            labels[np.asarray(part.mask) > 0] = _PART_LABELS.get(str(part.part_name), 0)
    return labels


def _normals(array: np.ndarray, form: TaskFormat, path: str) -> np.ndarray:
    if array.ndim == 3 and array.shape[-1] != 3 and array.shape[0] == 3:
        array = array.transpose(1, 2, 0)
    if array.ndim != 3 or array.shape[-1] != 3:
        raise ValueError(f"{path} holds an array of shape {array.shape}; normals need height x width x 3")
    if np.issubdtype(array.dtype, np.integer):
        array = array.astype(np.float32) / (127.5 if array.dtype == np.uint8 else 32767.5) - 1
    array = array.astype(np.float32)
    length = np.linalg.norm(array, axis=-1, keepdims=True)
    known = np.isfinite(length) & (length > 0.5) & (length < 1.5)
    unit = np.where(known, array, 0) / np.where(known, length, 1)
    return (unit * np.array(form.axes, dtype=np.float32)).astype(np.float32)


def _depth(array: np.ndarray, form: TaskFormat, path: str) -> np.ndarray:
    if form.scale is None and np.issubdtype(array.dtype, np.integer):
        raise ValueError(
            f"{path} holds whole numbers: say how many of them are one metre, formats=dict(depth=dict(scale=1000)) for "
            "millimetres"
        )
    depth = array.astype(np.float32) / np.float32(form.scale or 1.0)
    return np.where(np.isfinite(depth) & (depth > 0), depth, 0).astype(np.float32)


def _mask(array: np.ndarray, task: str, form: TaskFormat, path: str) -> np.ndarray:
    if array.dtype == bool or (not np.issubdtype(array.dtype, np.integer) and array.max(initial=0) <= 1):
        return (array > 0.5).astype(np.uint8)
    fill = find_task_map(task).fill
    labels = bool(np.isin(array, (0, 1, fill)).all())
    if form.values == "labels" and not labels:
        other = array[~np.isin(array, (0, 1, fill))][0]
        raise ValueError(
            f"{path} holds {other}; labels of {task} are 0, 1 and {fill}. A picture of probabilities: "
            f"formats=dict({task}=dict(values='grey'))"
        )
    if form.values == "auto":
        # A lossy picture holds no class numbers, however dark it is.
        labels = labels and Path(path).suffix.lower() != ".jpg" and (bool((array == 1).any()) or not array.any())
    if labels and form.values != "grey":
        return array.astype(np.uint8)
    half = np.iinfo(array.dtype).max / 2 if np.issubdtype(array.dtype, np.unsignedinteger) else 127.5
    return (array > half).astype(np.uint8)


def _classes(array: np.ndarray, task: str, form: TaskFormat, path: str) -> np.ndarray:
    fill = find_task_map(task).fill
    values = array.astype(np.int64)
    if form.reduce_zero_label:
        values = np.where((values == 0) | (values == fill), fill, values - 1)
    if values.min(initial=0) < 0 or values.max(initial=0) > fill:
        raise ValueError(f"{path} holds {values.min()} to {values.max()}; labels of {task} are 0 to 254, 255 unknown")
    if task == "parts" and form.need_person and not ((values > 0) & (values != fill)).any():
        values = np.full_like(values, fill)
    return values.astype(np.uint8)
