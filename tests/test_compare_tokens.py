"""tools/compare_tokens.py: what its arguments change, and the report of its rows."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
from mmengine.config import Config

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("compare_tokens", ROOT / "tools" / "compare_tokens.py")
    module, path = importlib.util.module_from_spec(spec), list(sys.path)
    spec.loader.exec_module(module)
    sys.path[:] = path
    return module


def arguments(**changes: object) -> argparse.Namespace:
    return argparse.Namespace(**(dict(scenes=12, size=None, crop=None, batch=None) | changes))


def test_size_crop_and_batch_change_the_data(tool: ModuleType) -> None:
    cfg = Config.fromfile(ROOT / "configs/stvit/upernet_scenes.py")
    cfg = tool.resize(cfg, arguments(size=[90, 120], crop=64, batch=3))
    assert cfg.train_dataloader.dataset.size == cfg.val_dataloader.dataset.size == (90, 120)
    assert cfg.train_dataloader.dataset.num_scenes == 12 and cfg.val_dataloader.dataset.num_scenes == 100
    assert cfg.train_dataloader.batch_size == 3
    kinds = [step["type"] for step in cfg.train_dataloader.dataset.pipeline]
    assert kinds == ["mmvit_plugins.LoadScene", "RandomCrop", "RandomFlip", "PackSegInputs"]
    photographs = Config.fromfile(ROOT / "configs/stvit/mini_upernet_camvid.py")
    with pytest.raises(SystemExit, match="BaseSegDataset reads files"):
        tool.resize(photographs, arguments(size=[90, 120]))
    tool.resize(photographs, arguments())
    assert photographs.train_dataloader.batch_size == 4


def test_a_variant_is_the_base_with_changes_or_another_model(tool: ModuleType) -> None:
    base = Config.fromfile(ROOT / "configs/stvit/upernet_scenes.py")
    other = tool.change(
        base, [str(ROOT / "configs/token_reduction_neck/coarse_upernet_scenes.py"), "model.neck.depth=2"]
    )
    assert [r["cell"] for r in other.model.neck.reducer] == [16, 8, 4, 2] and other.model.neck.depth == 2
    assert "neck" not in tool.change(base, []).model


def test_report(tool: ModuleType, tmp_path: Path) -> None:
    rows = [
        dict(name="constant", mIoU=7.4),
        dict(name="q64", mflop=69.4, mIoU=32.4),
        dict(name="q100", mflop=91, mIoU=33),
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tool.report(tmp_path)
    table = (tmp_path / "table.md").read_text().splitlines()
    assert len(table) == 5 and table[2].split(" | ")[6] == "7.4" and table[3].startswith("| q64 | ")
    assert (tmp_path / "accuracy.png").stat().st_size > 5000


@pytest.mark.parametrize("data", ["scenes", "camvid"])
def test_configs_with_and_without_a_neck_differ_in_it_only(data: str) -> None:
    plain = dict(scenes="upernet_scenes", camvid="mini_upernet_camvid")[data]
    wanted = Config.fromfile(ROOT / f"configs/stvit/{plain}.py").to_dict()
    names = sorted((ROOT / "configs/token_reduction_neck").glob(f"*upernet_{data}.py"))
    reducers = set()
    for name in names:
        cfg = Config.fromfile(name).to_dict()
        neck = cfg["model"].pop("neck")
        assert neck["embed_dims"] == 64 and neck["num_heads"] == 4
        reducers.add(json.dumps([neck["cross_level"], neck["reducer"]]))
        assert cfg == wanted
    assert len(reducers) == len(names) == 7
