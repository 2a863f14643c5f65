"""Tensors out of checkpoint files, whatever else these hold, without running anything from the file.

Training scripts save their arguments, log buffers and numpy numbers beside the weights, and ``weights_only=True``
refuses such a file as a whole. Here it is tried first; if it refuses, the file is read once more with every object that
is no tensor replaced by an inert one, so that no code named in the file is ever called.
"""

from __future__ import annotations

import http.client
import os
import pickle
import re
from collections import OrderedDict
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlparse

import torch
from torch import Tensor

__all__ = ["read_state_dict"]

# Where training scripts put the weights inside a file, in the order of preference.
STATE_KEYS = ("state_dict", "model", "model_state_dict", "module", "net", "checkpoint", "state_dict_ema", "model_ema")


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


def _load_tensors(file: Any, **kwargs: Any) -> Any:
    """In the place of ``pickle.load``, which torch calls for the parts of old files."""
    return _TensorUnpickler(file, **kwargs).load()


def _load(path: str) -> Any:
    """The content of a local file on the CPU, non-tensors inert where ``weights_only`` refuses them."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if not re.search(r"Unsupported (global|class)", str(error)):
            raise
        module = SimpleNamespace(Unpickler=_TensorUnpickler, load=_load_tensors, __name__="tensor_pickle")
        return torch.load(path, map_location="cpu", weights_only=False, pickle_module=module)


def read_state_dict(path: str) -> dict[str, Tensor]:
    """The tensors of a checkpoint file or URL, on the CPU. Nothing in the file is executed.

    Raises:
        FileNotFoundError: no such file, or it cannot be fetched.
        ValueError: the file is damaged or holds no state dict; names the file.
    """
    local = _download(path) if re.match(r"https?://", path) else path
    if not os.path.isfile(local):
        raise FileNotFoundError(f"no checkpoint at {os.path.abspath(local)}")
    try:
        content = _load(local)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError, KeyError, AttributeError) as error:
        with open(local, "rb") as file:
            start = file.read(200).lstrip().lower()
        web_page = " It looks like a web page: the link was not that of the file." if start.startswith(b"<") else ""
        raise ValueError(f"{path} is damaged or is no PyTorch checkpoint.{web_page}") from error
    return _find_tensors(content, path)


def _download(url: str) -> str:
    """The local copy of a URL in torch hub's folder.

    Raises:
        FileNotFoundError: it cannot be fetched.
    """
    folder = os.path.join(torch.hub.get_dir(), "checkpoints")
    local = os.path.join(folder, os.path.basename(urlparse(url).path))
    if not os.path.isfile(local):
        os.makedirs(folder, exist_ok=True)
        try:
            torch.hub.download_url_to_file(url, local)
        except (OSError, http.client.HTTPException) as error:
            raise FileNotFoundError(f"cannot fetch {url}: {error}. Download it yourself and give its path.") from error
    return local


def _find_tensors(content: Any, path: str) -> dict[str, Tensor]:
    """The state dict inside what a training script saved."""
    while isinstance(content, Mapping):
        inner = next((content[key] for key in STATE_KEYS if isinstance(content.get(key), Mapping)), None)
        if inner is None:
            break
        content = inner
    tensors = {k: v for k, v in content.items() if isinstance(v, Tensor)} if isinstance(content, Mapping) else {}
    if not tensors:
        raise ValueError(f"{path} holds no state dict (looked at the top and under {', '.join(STATE_KEYS)})")
    return tensors
