"""The set-up commands of the checkout: make, the environment, mmcv's operators."""

import os
import shutil
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from test_packaging import REPOSITORY, run

from mmvit_plugins.cli import build_operators

needs_make = pytest.mark.skipif(not shutil.which("make"), reason="needs the program make")


@needs_make
@pytest.mark.parametrize("venv", [".venv", "/some where/else"])
def test_make_runs_the_programs_of_the_environment(venv):
    for target, module in (
        ("demo", "mmvit_plugins.cli.demo"),
        ("test", "pytest -n 2 --dist worksteal"),
    ):
        lines = run("make", "-n", target, f"VENV={venv}", "ARGS=-x", cwd=REPOSITORY).stdout.splitlines()
        assert lines == [f'bash .ci/setup_venv "{venv}" {target}', f'"{venv}/bin/python" -m {module} -x']


@needs_make
def test_make_alone_explains_itself():
    assert "make demo" in run("make", cwd=REPOSITORY).stdout


def test_ci_is_make_test_from_any_folder(tmp_path):
    fake = tmp_path / "make"
    fake.write_text('#!/bin/sh\necho "make $*|$PWD"\n')
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    result = run("bash", REPOSITORY / ".ci" / "run", cwd=tmp_path, PATH=path)
    assert (result.returncode, result.stdout.strip()) == (0, f"make test|{REPOSITORY}")


# A stand-in for Python: notes every call, and behaves as if what it installed were there.
FAKE_PYTHON = """#!/usr/bin/env bash
echo "$*" >>"$FAKE/calls"
case "$*" in
  *sys.version_info*) [ -z "$FAKE_OLD" ] ;;
  --version) echo "Python 3.x" ;;
  "-m venv "*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; touch "$3/pyvenv.cfg" ;;
  *" --version") ;;
  *" install "*)
    [[ -z "$FAKE_FAIL" || "$*" != *"$FAKE_FAIL"* ]] || { echo "no route to host"; exit 1; }
    [[ "$*" != *torch==* ]] || touch "$FAKE/torch"
    [[ "$*" != *onedl-mmcv* ]] || touch "$FAKE/onedl-mmcv"
    [[ "$*" != *--editable* ]] || { mkdir -p mmvit_plugins/.mim; touch mmvit_plugins/.mim/model-index.yml; } ;;
  *"import torch, torchvision"*) [ -e "$FAKE/torch" ] ;;
  *version*) [ -e "$FAKE/${*: -1}" ] && echo 2.10.0+cu128 ;;
esac
"""


@pytest.fixture
def setup(tmp_path):
    """``setup(venv, level, **env)`` runs .ci/setup_venv with the stand-in; ``setup.calls()`` are its pip installs."""
    root = tmp_path / "check out"
    for name in (".ci/setup_venv", "setup.py", "pyproject.toml", "constraints/onedl.txt", "mmvit_plugins/version.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, root / name)
    state = tmp_path / "state"
    state.mkdir()
    python = tmp_path / "fake python"
    python.write_text(FAKE_PYTHON)
    python.chmod(0o755)
    clean = {"FAKE": str(state), "FAKE_FAIL": "", "FAKE_OLD": "", "TORCH_ARGS": ""}

    def call(venv: Path | str, level: str, **env: str) -> subprocess.CompletedProcess:
        (state / "calls").write_text("")
        return run(
            "bash", root / ".ci" / "setup_venv", venv, level, cwd=tmp_path, **{"PYTHON": str(python), **clean, **env}
        )

    def calls(word: str = " install ") -> list[str]:
        return [line for line in (state / "calls").read_text().splitlines() if word in line]

    call.calls, call.root, call.state = calls, root, state
    return call


def test_setup_installs_in_order_once_and_keeps_torch(setup, tmp_path):
    venv = tmp_path / "an environment"
    result = setup(venv, "demo", TORCH_ARGS="--index-url somewhere")
    assert result.returncode == 0, result.stderr
    torch, mmcv, project, *_ = setup.calls()
    assert "--index-url somewhere torch==2.10.0 torchvision==0.25.0" in torch
    assert "--no-cache-dir --no-deps" in mmcv and mmcv.endswith("onedl-mmcv")
    assert project.endswith("--editable .[onedl]") and "--constraint" in project
    pins = (venv / ".mmvit" / "constraints.txt").read_text()
    assert "torch==2.10.0+cu128\n" in pins and "onedl-mmcv==2.3.6\n" in pins
    assert not setup.calls("build_operators")
    again = setup(venv, "demo")
    assert (again.returncode, again.stdout, setup.calls("")) == (0, "", [])


def test_setup_for_tests_adds_operators_and_serves_the_demo_too(setup, tmp_path):
    assert setup(tmp_path / "venv", "demo").returncode == 0
    assert setup(tmp_path / "venv", "test").returncode == 0
    assert setup.calls()[0].endswith("--editable .[onedl,dev,export,search]"), "torch and mmcv are there already"
    assert setup.calls("mmvit_plugins.cli.build_operators")
    setup(tmp_path / "venv", "demo")
    assert setup.calls("") == []


def test_setup_resumes_after_an_interruption(setup, tmp_path):
    result = setup(tmp_path / "venv", "demo", FAKE_FAIL="--editable")
    assert result.returncode != 0
    assert "no route to host" in result.stdout and "pip could not install the packages" in result.stderr
    assert not (tmp_path / "venv" / ".mmvit" / "demo").exists()
    assert setup(tmp_path / "venv", "demo").returncode == 0
    assert "--editable" in setup.calls()[0], "what was done is not done again"


def test_setup_repeats_itself_when_the_recipe_or_the_checkout_changes(setup, tmp_path):
    setup(tmp_path / "venv", "demo")
    with (setup.root / "setup.py").open("a") as file:
        file.write("# a new requirement\n")
    setup(tmp_path / "venv", "demo")
    assert "--editable" in setup.calls()[0]
    shutil.rmtree(setup.root / "mmvit_plugins" / ".mim")  # as `git clean` does
    setup(tmp_path / "venv", "demo")
    assert "--editable" in setup.calls()[0]


def test_setup_says_what_is_wrong(setup, tmp_path):
    torch = setup(tmp_path / "venv", "demo", FAKE_FAIL="torch==")
    assert "could not install torch==2.10.0 and torchvision==0.25.0" in torch.stderr and torch.returncode == 1
    old = setup(tmp_path / "other", "demo", FAKE_OLD="1")
    assert "is too old: 3.10 or newer is needed" in old.stderr and not (tmp_path / "other").exists()
    none = setup(tmp_path / "other", "demo", PYTHON="python3.99")
    assert "no python3.99 on PATH" in none.stderr and none.returncode == 1
    (setup.state / "mmengine").touch()
    line = setup(tmp_path / "venv", "demo")
    assert "has mmengine of OpenMMLab's line" in line.stderr and not setup.calls()
    (tmp_path / "papers").mkdir()
    (tmp_path / "papers" / "thesis.tex").touch()
    folder = setup(tmp_path / "papers", "demo")
    assert "is there and is no virtual environment" in folder.stderr
    assert os.listdir(tmp_path / "papers") == ["thesis.tex"]


def operator_wheel(path: Path, extension: bool = True) -> Path:
    """A small file that looks like a wheel of mmcv."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("mmcv/__init__.py", "")
        if extension:
            archive.writestr("mmcv/_ext.cpython-311-x86_64-linux-gnu.so", "x" * 1000)
    return path


def test_only_a_whole_wheel_with_operators_is_reused(tmp_path):
    assert build_operators.find_wheel(tmp_path) is None
    whole = operator_wheel(tmp_path / "whole.whl")
    (tmp_path / "half.whl").write_bytes(whole.read_bytes()[:-200])
    operator_wheel(tmp_path / "bare.whl", extension=False)
    assert build_operators.find_wheel(tmp_path) == whole
    whole.unlink()
    assert build_operators.find_wheel(tmp_path) is None


def test_wheel_key_tells_apart_what_a_wheel_depends_on():
    keys = {
        build_operators.wheel_key(mmcv, torch, device)
        for mmcv in ("onedl-mmcv==2.3.6", "mmcv==2.1.0")
        for torch in ("2.10.0+cu128", "2.10.0+cpu", "2.4.1")
        for device in ("cpu", "cuda")
    }
    assert len(keys) == 12
    assert not [key for key in keys if "/" in key or " " in key]


def test_a_kept_wheel_is_found_without_a_build(tmp_path, monkeypatch, capsys):
    import torch

    monkeypatch.setenv("MMVIT_CACHE", str(tmp_path))
    monkeypatch.setattr(build_operators, "build_wheel", lambda *_: pytest.fail("built again"))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    folder = tmp_path / "wheels" / build_operators.wheel_key("onedl-mmcv==9.9", torch.__version__, device)
    folder.mkdir(parents=True)
    kept = operator_wheel(folder / "kept.whl")
    assert build_operators.main(["--mmcv", "onedl-mmcv==9.9", "--no-install"]) == 0
    assert f"Using the kept wheel {kept}" in capsys.readouterr().out
    assert build_operators.main(["--mmcv", "onedl-mmcv", "--no-install"]) == 1
    assert "give --mmcv NAME==VERSION" in capsys.readouterr().err


@pytest.mark.parametrize("outcome", ["failure", "no operators", "success"])
def test_a_build_leaves_a_whole_wheel_or_none(tmp_path, monkeypatch, outcome):
    monkeypatch.setattr(build_operators, "_check_compiler", lambda: None)
    monkeypatch.setattr(build_operators.subprocess, "call", lambda *_, **__: 0)
    (tmp_path / ".build-killed").mkdir()

    def pip(command: list[str], env: dict[str, str], log: Path) -> int:
        log.write_text("g++: internal compiler error\n")
        scratch = Path(command[command.index("--wheel-dir") + 1])
        assert "--no-cache-dir" in command and "--no-build-isolation" in command
        operator_wheel(scratch / "mmcv.whl", extension=outcome != "no operators")
        return int(outcome == "failure")

    monkeypatch.setattr(build_operators, "_run_with_progress", pip)
    if outcome == "success":
        assert build_operators.build_wheel("onedl-mmcv==2.3.6", tmp_path) == tmp_path / "mmcv.whl"
    else:
        reason = "ended with status 1" if outcome == "failure" else "no compiled extension"
        with pytest.raises(build_operators.BuildError, match=f"(?s)internal compiler error.*{reason}"):
            build_operators.build_wheel("onedl-mmcv==2.3.6", tmp_path)
        assert build_operators.find_wheel(tmp_path) is None
    assert not list(tmp_path.glob(".build-*"))


def test_a_long_build_shows_its_steps_and_signs_of_life(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(build_operators, "HEARTBEAT_SECONDS", 0.1)
    code = "import time; print('  [3/78] c++ -MMD -c /tmp/csrc/nms.cpp -o nms.o', flush=True); time.sleep(0.5); exit(7)"
    log = tmp_path / "log"
    assert build_operators._run_with_progress([sys.executable, "-c", code], dict(os.environ), log) == 7
    out = capsys.readouterr().out
    assert "compiled 3 of 78: nms.cpp" in out and "still working" in out
    assert "c++ -MMD" in log.read_text()
