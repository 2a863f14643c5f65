"""Tensors out of checkpoint files, whatever else these hold, without running anything from the file.

Training scripts save their arguments, log buffers and numpy numbers beside the weights, and ``weights_only=True``
refuses such a file as a whole. Here it is tried first; if it refuses, the file is read once more with every object that
is no tensor replaced by an inert one, so that no code named in the file is ever called.
"""

from __future__ import annotations

import os
import pickle
import re
from collections import OrderedDict
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

__all__ = ["read_state_dict"]

# Where training scripts put the weights inside a file, in the order of preference.
STATE_KEYS = ("state_dict", "model", "model_state_dict", "module", "net")


class _Ignored:
    """Stands for any object of a file that is no tensor; swallows whatever its pickle does with it."""

    def __new__(cls, *args: Any, **kwargs: Any) -> _Ignored:
        return object.__new__(cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __call__(self, *args: Any, **kwargs: Any) -> _Ignored:
        return self

    def __setstate__(self, state: Any) -> None:
        pass

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def append(self, value: Any) -> None:
        """Pickles fill lists so."""

    def extend(self, values: Any) -> None:
        """Pickles fill lists so."""


class _TensorUnpickler(pickle.Unpickler):
    """Finds what tensors are made of, and :class:`_Ignored` for everything else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module == "torch._utils" and name.startswith("_rebuild_") and name != "_rebuild_from_type_v2":
            return getattr(torch._utils, name)
        if (module, name) == ("torch.nn.parameter", "Parameter"):
            return torch.nn.Parameter
        if module == "torch" and (name == "Size" or isinstance(getattr(torch, name, None), torch.dtype)):
            return getattr(torch, name)
        if module == "torch" and name.endswith("Storage"):
            return getattr(torch, name)
        return _Ignored


def _load(path: str) -> Any:
    """The content of a local file on the CPU, non-tensors inert where ``weights_only`` refuses them."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if not re.search(r"Unsupported (global|class)", str(error)):
            raise
        module = SimpleNamespace(Unpickler=_TensorUnpickler, load=pickle.load, __name__="tensor_pickle")
        return torch.load(path, map_location="cpu", weights_only=False, pickle_module=module)


def read_state_dict(path: str) -> dict[str, Tensor]:
    """The tensors of a checkpoint file or URL, on the CPU. Nothing in the file is executed.

    Raises:
        FileNotFoundError: no such file.
        ValueError: the file is damaged or holds no state dict; names the file.
    """
    try:
        if re.match(r"https?://", path):
            content = torch.hub.load_state_dict_from_url(path, map_location="cpu", weights_only=True)
        elif os.path.isfile(path):
            content = _load(path)
        else:
            raise FileNotFoundError(f"no checkpoint at {os.path.abspath(path)}")
    except FileNotFoundError:
        raise
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError, KeyError, AttributeError) as error:
        reason = str(error).splitlines()[-1] if str(error) else type(error).__name__
        raise ValueError(f"{path} is damaged or is no PyTorch checkpoint: {reason}") from error
    return _find_tensors(content, path)


def _find_tensors(content: Any, path: str) -> dict[str, Tensor]:
    """The state dict inside what a training script saved."""
    while isinstance(content, Mapping) and not any(isinstance(v, Tensor) for v in content.values()):
        inner = next((content[key] for key in STATE_KEYS if isinstance(content.get(key), Mapping)), None)
        if inner is None:
            break
        content = inner
    tensors = {k: v for k, v in content.items() if isinstance(v, Tensor)} if isinstance(content, Mapping) else {}
    if not tensors:
        raise ValueError(f"{path} holds no state dict (looked at the top and under {', '.join(STATE_KEYS)})")
    return tensors
