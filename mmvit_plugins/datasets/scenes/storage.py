"""Scenes kept in memory, and scenes as files: ``scenes://`` addresses that mmengine reads like any other path.

Hooks, visualisers and metrics of the host libraries read the picture again from ``img_path``. An address such as
``scenes://val/seed0/objects3-6/128x128/rgb/000012.png`` renders it on demand, so that all of them work without files.
"""

from __future__ import annotations

import mmap
import os
import re
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import cv2
import numpy as np
from mmengine.fileio import register_backend
from mmengine.fileio.backends import BaseStorageBackend

from .sampling import sample_scene
from .scene import Scene, render_scene

__all__ = ["SceneCache", "ScenesBackend", "image_uri"]

_LAYERS = ("rgb", "seg")
_ADDRESS = re.compile(
    r"^scenes://(?P<split>\w+)/seed(?P<seed>\d+)/objects(?P<fewest>\d+)-(?P<most>\d+)/"
    r"(?P<height>\d+)x(?P<width>\d+)/(?P<layer>\w+)/(?P<index>\d+)\.png$"
)


def image_uri(
    seed: int, split: str, index: int, size: tuple[int, int], objects: tuple[int, int], layer: str = "rgb"
) -> str:
    """Address under which mmengine reads a layer of a scene as PNG.

    Args:
        seed: as for :func:`~mmvit_plugins.datasets.scenes.render_scene`.
        split: likewise.
        index: likewise.
        size: height and width.
        objects: fewest and most objects.
        layer: 'rgb', or 'seg' for the semantic map (one channel, class indices).
    """
    height, width = size
    return f"scenes://{split}/seed{seed}/objects{objects[0]}-{objects[1]}/{height}x{width}/{layer}/{index:06d}.png"


@register_backend("scenes", prefixes="scenes", force=True)
class ScenesBackend(BaseStorageBackend):
    """Storage backend of mmengine for ``scenes://`` addresses; read-only."""

    def get(self, filepath: str | Path) -> bytes:
        """PNG bytes of the addressed layer.

        Raises:
            FileNotFoundError: when the address has another form or names an unknown layer.
            ValueError: when a part of it is out of range.
        """
        match = _ADDRESS.match(str(filepath))
        if match is None or match["layer"] not in _LAYERS:
            raise FileNotFoundError(
                f"{str(filepath)!r} is no scene. Addresses look like {image_uri(0, 'val', 12, (128, 128), (3, 6))!r}, "
                f"with one of the layers {', '.join(_LAYERS)} before the number."
            )
        scene = render_scene(
            seed=int(match["seed"]),
            split=match["split"],
            index=int(match["index"]),
            size=(int(match["height"]), int(match["width"])),
            objects=(int(match["fewest"]), int(match["most"])),
        )
        pixels = scene.rgb[..., ::-1] if match["layer"] == "rgb" else scene.semantic
        encoded, data = cv2.imencode(".png", pixels)
        assert encoded
        return data.tobytes()

    def get_text(self, filepath: str | Path, encoding: str = "utf-8") -> str:
        """Scenes are pictures.

        Raises:
            ValueError: always.
        """
        raise ValueError(f"{str(filepath)!r} is a picture, not a text: read it with get().")

    def exists(self, filepath: str | Path) -> bool:
        """Whether the address has the form of a scene's."""
        match = _ADDRESS.match(str(filepath))
        return match is not None and match["layer"] in _LAYERS

    isfile = exists

    def isdir(self, filepath: str | Path) -> bool:
        """Never: scenes are not listed."""
        return False

    def join_path(self, filepath: str | Path, *filepaths: str | Path) -> str:
        """The parts joined by slashes."""
        return "/".join([str(filepath).rstrip("/"), *(str(part).strip("/") for part in filepaths)])

    @contextmanager
    def get_local_path(self, filepath: str | Path) -> Generator[str, None, None]:
        """A temporary file with the PNG, removed on leaving the context."""
        data = self.get(filepath)
        handle, path = tempfile.mkstemp(suffix=".png")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            yield path
        finally:
            os.remove(path)


class SceneCache:
    """Images and surface maps of a fixed set of scenes, kept in memory; 4 bytes per pixel.

    The memory is shared with data loader workers that are forked, so that all of them fill and read one copy. It is
    anonymous and so does not count against the small ``/dev/shm`` of containers. A copy that is pickled (to a spawned
    worker) starts empty. Geometry is traced again when it is asked for: that costs less than keeping it.

    Args:
        count: number of scenes.
        size: height and width in pixels.
    """

    def __init__(self, count: int, size: tuple[int, int]) -> None:
        self.count = count
        self.size = size
        self._allocate()

    def _allocate(self) -> None:
        height, width = self.size
        buffer = mmap.mmap(-1, max(1, self.count * (height * width * 4 + 1)))
        pixels = np.frombuffer(buffer, dtype=np.uint8)
        self._ready = pixels[: self.count]
        self._rgb = pixels[self.count :][: self.count * height * width * 3].reshape(self.count, height, width, 3)
        self._surface = pixels[self.count * (height * width * 3 + 1) :][: self.count * height * width].reshape(
            self.count, height, width
        )

    def get(self, slot: int, seed: int, split: str, index: int, objects: tuple[int, int]) -> Scene:
        """The scene of a slot, rendered on the first request.

        Two workers that ask for the same slot at once render it twice, with the same result.
        """
        if not self._ready[slot]:
            scene = render_scene(seed, split, index, self.size, objects)
            self._rgb[slot], self._surface[slot] = scene.rgb, scene.surface
            self._ready[slot] = 1
            return scene
        return Scene(sample_scene(seed, split, index, objects), self.size, self._rgb[slot], self._surface[slot])

    @property
    def filled(self) -> int:
        """Number of scenes that are in memory already."""
        return int(self._ready.sum())

    def __getstate__(self) -> dict[str, object]:
        return {"count": self.count, "size": self.size}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._allocate()

    def __deepcopy__(self, memo: dict[int, object]) -> SceneCache:
        return self  # the content is a pure function of the request, so copies may share it
