"""The training tool, killed by the operating system, goes on where its last checkpoint was."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hosts import require_host
from test_resume import damage

from mmvit_plugins.cli import train

CONFIG = """
_base_ = {base!r}
custom_imports = dict(imports=["training_log"], allow_failed_imports=False)
custom_hooks = [dict(type="TrainingLog")]
small_arch = dict(dims=(8, 16, 16, 24), depths=(1, 1, 1, 1), heads=(1, 2, 2, 3), cells=(4, 2, 1, 1))
small_arch.update(layer_scale=(0, 0, 0, 0))
model = dict(
    data_preprocessor=dict(size=(32, 48)),
    backbone=dict(_delete_=True, type="mmvit_plugins.STViT", arch=small_arch, drop_path_rate=0.3),
    decode_head=dict(in_channels=[8, 16, 16, 24], channels=8, dropout_ratio=0.3),
    auxiliary_head=dict(in_channels=16, channels=8),
)
train_dataloader = dict(batch_size=3, dataset=dict(num_scenes=11, size=(32, 48)))
val_dataloader = dict(batch_size=3, dataset=dict(num_scenes=3, size=(32, 48)))
test_dataloader = val_dataloader
train_cfg = dict(max_iters=9, val_interval=6)
param_scheduler = [
    dict(type="LinearLR", start_factor=0.1, by_epoch=False, begin=0, end=5),
    dict(type="PolyLR", eta_min=0.0, power=0.9, begin=5, end=9, by_epoch=False),
]
default_hooks = dict(logger=dict(interval=1), checkpoint=dict(interval=3, save_best=None))
"""

HOOK = '''
import json, os, signal
from mmengine.hooks import Hook
from mmengine.registry import HOOKS

@HOOKS.register_module()
class TrainingLog(Hook):
    """One line for each iteration; kills its own process before iteration $KILL_AT."""
    priority = "LOWEST"

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if runner.iter == int(os.environ.get("KILL_AT", -1)):
            os.kill(os.getpid(), signal.SIGKILL)

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        samples = data_batch["data_samples"]
        row = dict(iter=runner.iter, images=[s.img_path for s in samples], flips=[bool(s.flip) for s in samples],
                   lr=runner.optim_wrapper.get_lr()["lr"][0], loss=float(outputs["loss"]))
        with open(os.environ["TRAINING_LOG"], "a") as file:
            file.write(json.dumps(row) + "\\n")
'''


def read_log(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def train_here(folder: Path, work_dir: str, *options: str) -> list[dict]:
    """Run the tool in this process, as far as it goes; returns what the iterations saw."""
    log = folder / f"{work_dir}{''.join(options)}.jsonl"
    os.environ["TRAINING_LOG"] = str(log)
    assert train.main([str(folder / "config.py"), "--work-dir", str(folder / work_dir), *options]) == 0
    return read_log(log)


def train_and_die(root: Path, folder: Path, work_dir: str, kill_at: int) -> list[dict]:
    """Run the tool in a process that kills itself; returns what its iterations saw."""
    log = folder / f"{work_dir}.jsonl"
    environment = dict(os.environ, TRAINING_LOG=str(log), KILL_AT=str(kill_at), PYTHONPATH=str(folder))
    command = [sys.executable, str(root / "tools" / "train.py"), str(folder / "config.py"), "--work-dir", work_dir]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr
    return read_log(log)


def test_the_tool_goes_on_after_kill_9(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    require_host("mmseg")
    base = str(root / "configs" / "stvit" / "upernet_scenes.py")
    (tmp_path / "config.py").write_text(CONFIG.format(base=base))
    (tmp_path / "training_log.py").write_text(HOOK)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("TRAINING_LOG", "")
    before = train_and_die(root, tmp_path, "cut", kill_at=5)
    straight = train_here(tmp_path, "straight")
    after = train_here(tmp_path, "cut", "--resume")
    assert [row["iter"] for row in straight] == list(range(9))
    assert [row["iter"] for row in before] == [0, 1, 2, 3, 4]
    assert [row["iter"] for row in after] == [3, 4, 5, 6, 7, 8], "the checkpoint holds 3 iterations"
    rows = before[:3] + after
    for key in ("images", "flips", "lr"):
        assert [row[key] for row in rows] == [row[key] for row in straight], key
    assert np.allclose([row["loss"] for row in rows], [row["loss"] for row in straight], rtol=1e-4)
    whole, resumed = (
        torch.load(tmp_path / name / "iter_9.pth", map_location="cpu", weights_only=False)["state_dict"]
        for name in ("straight", "cut")
    )
    assert list(whole) == list(resumed)
    for key, value in whole.items():
        torch.testing.assert_close(
            resumed[key], value, rtol=1e-3, atol=1e-5, msg=lambda text, key=key: f"{key}: {text}"
        )
    assert any(row["flips"] != straight[0]["flips"] for row in straight), "no flip varied, so nothing was compared"
    # A cut-off checkpoint is passed over in an automatic resume, and named when it was asked for.
    broken = tmp_path / "cut" / "iter_9.pth"
    damage(broken)
    assert [row["iter"] for row in train_here(tmp_path, "cut", "--resume", "auto")] == [6, 7, 8]
    damage(broken)
    capfd.readouterr()
    arguments = [str(tmp_path / "config.py"), "--work-dir", str(tmp_path / "cut"), "--resume", str(broken)]
    assert train.main(arguments) == 1
    said = capfd.readouterr().err
    assert f"cannot read checkpoint {broken}" in said and "Traceback" not in said
