"""What is varied in a benchmark."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["DTYPES", "LAYOUTS", "MODES", "PARTS", "Setting", "parse_size", "product_of"]

PARTS = ("backbone", "model")
MODES = ("inference", "train")
DTYPES = ("float32", "bfloat16", "float16")
LAYOUTS = ("contiguous", "channels_last")


@dataclass(frozen=True)
class Setting:
    """One way to run a model.

    Args:
        height: of the input in pixels.
        width: of the input in pixels.
        batch: images in a call.
        dtype: ``float32``, or the dtype of autocast.
        layout: memory format of images and weights.
        compiled: through ``torch.compile``.
        part: the backbone alone, or the whole model with its preprocessing and postprocessing.
        mode: a forward pass without gradients, or forward, backward and (of a whole model) the optimiser's step.
    """

    height: int = 224
    width: int = 224
    batch: int = 1
    dtype: str = "float32"
    layout: str = "contiguous"
    compiled: bool = False
    part: str = "model"
    mode: str = "inference"

    def __post_init__(self) -> None:
        for name, legal in (("dtype", DTYPES), ("layout", LAYOUTS), ("part", PARTS), ("mode", MODES)):
            if getattr(self, name) not in legal:
                raise ValueError(f"{name} is one of {', '.join(legal)}, got {getattr(self, name)!r}")
        for name in ("height", "width", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    @property
    def pixels(self) -> int:
        """Pixels of one image."""
        return self.height * self.width

    def as_dict(self) -> dict[str, Any]:
        """For JSON and CSV."""
        return asdict(self)

    def __str__(self) -> str:
        words = [f"{self.height}x{self.width}", f"batch {self.batch}", self.dtype, self.layout]
        return ", ".join([*words, *["compiled"] * self.compiled, self.part, self.mode])


def parse_size(text: str) -> tuple[int, int]:
    """``512`` -> (512, 512); ``512x1024`` -> (512, 1024), height first.

    Raises:
        ValueError: anything else.
    """
    parts = text.lower().split("x")
    if len(parts) > 2 or not all(part.isdigit() and int(part) > 0 for part in parts):
        raise ValueError(f"a size is SIDE or HEIGHTxWIDTH in pixels, such as 512 or 512x1024, got {text!r}")
    return int(parts[0]), int(parts[-1])


def product_of(sizes: Sequence[tuple[int, int]], **choices: Sequence[Any]) -> list[Setting]:
    """Every combination of sizes and of the other fields' values, each once, sizes varying slowest."""
    names = list(choices)
    combined = itertools.product(sizes, *(choices[name] for name in names))
    settings = [Setting(size[0], size[1], **dict(zip(names, values, strict=True))) for size, *values in combined]
    return list(dict.fromkeys(settings))
