"""Our names are found in every host, under every default scope, and without any host."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hosts import HOSTS, require_host
from mmengine.registry import MODELS as MMENGINE_MODELS
from mmengine.registry import DefaultScope

import mmvit_plugins.registry as registry

STVIT = dict(type="mmvit_plugins.STViT", arch="mini", out_indices=(0, 2))


def run_python(code: str, root: Path) -> str:
    """Run ``code`` in a fresh interpreter; returns what it printed."""
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("scope", [*HOSTS, "mmengine", "mmvit_plugins"])
def test_builds_under_every_default_scope(scope: str) -> None:
    if scope in HOSTS:
        require_host(scope)
    with DefaultScope.overwrite_default_scope(scope):
        model = MMENGINE_MODELS.build(dict(STVIT))
    assert type(model).__name__ == "STViT" and model.out_channels == (24, 96)
    with torch.no_grad():
        assert [tuple(y.shape[2:]) for y in model.eval()(torch.rand(1, 3, 33, 47))] == [(9, 12), (3, 3)]


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("scope", [*HOSTS, None], ids=str)
def test_builds_through_every_hosts_registry(host: str, scope: str | None) -> None:
    for name in {host, scope} - {None}:
        require_host(name)
    models = importlib.import_module(f"{host}.registry").MODELS
    with DefaultScope.overwrite_default_scope(scope):
        assert type(models.build(dict(STVIT))).__name__ == "STViT"


def test_plain_names_work_in_our_own_scope() -> None:
    with DefaultScope.overwrite_default_scope("mmvit_plugins"):
        model = MMENGINE_MODELS.build(dict(STVIT, type="STViT"))
    assert type(model).__module__ == "mmvit_plugins.models.backbones.stvit"


def test_a_misspelt_name_is_reported_with_the_name() -> None:
    with pytest.raises(KeyError, match=r"mmvit_plugins\.STVit is not in the"):
        MMENGINE_MODELS.build(dict(STVIT, type="mmvit_plugins.STVit"))


@pytest.mark.parametrize("child", sorted(set(registry.__all__) - {"SCOPE"}))
def test_every_registry_finds_its_parts(child: str) -> None:
    """A location that cannot be imported would look like an empty registry."""
    ours = getattr(registry, child)
    assert ours.scope == "mmvit_plugins" and ours.parent.scope == "mmengine"
    ours.import_from_location()
    for location in ours._locations:
        assert location in sys.modules
    for name, part in ours.module_dict.items():
        assert ours.parent.get(f"mmvit_plugins.{name}") is part


def test_no_name_takes_a_hosts_name() -> None:
    """A class of ours under a name that a host has as well would be ambiguous in messages and logs."""
    for host in HOSTS:
        require_host(host)
        theirs = importlib.import_module(f"{host}.registry")
        for part in ("models", "datasets", "evaluation"):
            importlib.import_module(f"{host}.{part}")
        for child in ("MODELS", "DATASETS", "TRANSFORMS", "METRICS", "HOOKS"):
            ours = getattr(registry, child)
            ours.import_from_location()
            assert not set(ours.module_dict) & set(getattr(theirs, child).module_dict), (host, child)


FORBIDDEN = ("mmcv", "mmdet", "mmseg", "mmpretrain", "torchvision", "cv2")


def test_the_registry_imports_neither_mmcv_nor_a_host(root: Path) -> None:
    code = f"import sys, mmvit_plugins.registry; print([m for m in {FORBIDDEN!r} if m in sys.modules])"
    baseline = f"import sys, mmengine.registry; print([m for m in {FORBIDDEN!r} if m in sys.modules])"
    assert run_python(code, root).strip() == run_python(baseline, root).strip()
    assert "mmcv" not in run_python(code, root)


def test_the_package_itself_imports_nothing_heavy(root: Path) -> None:
    code = "import sys, mmvit_plugins; print([m for m in ('torch', 'mmengine', 'mmcv', 'numpy') if m in sys.modules])"
    assert run_python(code, root).strip() == "[]"


WITHOUT_HOSTS = """
import sys

class Blocker:
    blocked = ("mmdet", "mmseg", "mmpretrain", "mmcv._ext")

    def find_spec(self, name, path=None, target=None):
        if any(name == one or name.startswith(one + ".") for one in self.blocked):
            raise ImportError(f"{name} is blocked")
        return None

sys.meta_path.insert(0, Blocker())
from mmengine.registry import MODELS, DATASETS, WEIGHT_INITIALIZERS, HOOKS
import torch

torch.set_num_threads(1)
model = MODELS.build(dict(type="mmvit_plugins.STViT", arch="mini")).eval()  # nobody has imported our package
with torch.no_grad():
    print([tuple(y.shape) for y in model(torch.rand(1, 3, 40, 33))])
neck = MODELS.build(dict(type="mmvit_plugins.STViTProjection", in_channels=128, out_channels=16)).eval()
print(type(neck).__name__)
print(DATASETS.get("mmvit_plugins.ScenesSegDataset").__name__)
print(WEIGHT_INITIALIZERS.get("mmvit_plugins.OfficialPretrained").__name__)
print(HOOKS.get("mmvit_plugins.LabelCheckHook").__name__)
from mmvit_plugins.environment import require
try:
    require("mmdet")
except ImportError as error:
    print("mmdet" in str(error))
print([m for m in ("mmdet", "mmseg", "mmpretrain", "mmcv._ext") if m in sys.modules])
"""


def test_works_without_any_host_and_without_compiled_operators(root: Path) -> None:
    said = run_python(WITHOUT_HOSTS, root).splitlines()
    assert said[-7:] == [
        "[(1, 24, 10, 9), (1, 48, 5, 5), (1, 96, 3, 3), (1, 128, 2, 2)]",
        "STViTProjection",
        "ScenesSegDataset",
        "OfficialPretrained",
        "LabelCheckHook",
        "True",
        "[]",
    ]


def test_every_docstring_example_of_the_package_runs(root: Path) -> None:
    """Those of the backbones run in their own tests; these are all others that need no host."""
    import doctest

    tried = 0
    for file in sorted((root / "mmvit_plugins").rglob("*.py")):
        if ">>> " not in file.read_text() or "backbones" in file.parts:
            continue
        parts = file.relative_to(root).with_suffix("").parts
        module = importlib.import_module(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
        result = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
        assert result.failed == 0, file
        tried += result.attempted
    assert tried > 0
