"""What the wheel carries, and the configs it makes reachable."""

import importlib.metadata
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from mmvit_plugins import __version__

REPOSITORY = Path(__file__).resolve().parents[1]


def run(*command: str | Path, cwd: Path, **env: str) -> subprocess.CompletedProcess:
    """Run a program without input and catch what it says, also below a `make` that runs these tests."""
    inherited = {key: value for key, value in os.environ.items() if key not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    return subprocess.run(
        [str(part) for part in command],
        check=False,
        cwd=cwd,
        env={**inherited, **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """A copy of the checkout in a folder with spaces, with something in it that must not travel."""
    target = tmp_path_factory.mktemp("a copy") / "with spaces"
    ignore = shutil.ignore_patterns(
        ".git",
        ".venv*",
        ".mim",
        "__pycache__",
        "*.egg-info",
        "build",
        "dist",
        "work_dirs",
        "data",
        "goldens",
        ".*_cache",
    )
    shutil.copytree(REPOSITORY, target, ignore=ignore)
    stale = target / "build" / "lib" / "mmvit_plugins" / "left_by_an_earlier_build.py"
    stale.parent.mkdir(parents=True)
    stale.touch()
    return target


def build(source: Path, hook: str, folder: Path) -> Path:
    """Call a hook of the build backend as pip does, without its temporary environment."""
    folder.mkdir()
    code = f"import sys; from setuptools import build_meta; print(build_meta.{hook}(sys.argv[1]))"
    result = run(sys.executable, "-c", code, folder, cwd=source)
    assert result.returncode == 0, result.stderr
    return folder / result.stdout.split()[-1]


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory) -> Path:
    """The built wheel."""
    return build(source, "build_wheel", tmp_path_factory.mktemp("wheel") / "out")


def test_wheel_has_the_package_alone_at_the_top(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.split("/")[0] for name in names} == {"mmvit_plugins", f"mmvit_plugins-{__version__}.dist-info"}
    modules = {path.relative_to(REPOSITORY).as_posix() for path in (REPOSITORY / "mmvit_plugins").rglob("*.py")}
    modules = {name for name in modules if "/.mim/" not in name}
    assert modules - set(names) == set(), "modules that the wheel lacks (a folder without __init__.py?)"
    assert not [name for name in names if "left_by_an_earlier_build" in name or "__pycache__" in name]


def test_wheel_carries_configs_tools_and_index(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    for folder in ("configs", "tools"):
        files = [
            path for path in (REPOSITORY / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts
        ]
        assert files
        assert {f"mmvit_plugins/.mim/{path.relative_to(REPOSITORY).as_posix()}" for path in files} <= names
    assert "mmvit_plugins/.mim/model-index.yml" in names


def test_wheel_metadata_neither_pull_nor_replace_torch_or_a_host(wheel):
    (distribution,) = importlib.metadata.distributions(path=[str(wheel)])
    assert distribution.metadata["Name"] == "mmvit-plugins"
    assert distribution.metadata["Requires-Python"] == ">=3.10"
    assert {"onedl", "openmmlab", "export", "search", "dev"} <= set(distribution.metadata.get_all("Provides-Extra"))
    always = [requirement for requirement in distribution.requires if "extra ==" not in requirement]
    assert sorted(requirement.split(">")[0] for requirement in always) == ["matplotlib", "numpy", "rich"]
    assert not [requirement for requirement in distribution.requires if requirement.startswith("torch")]
    commands = {entry.name: entry.value for entry in distribution.entry_points if entry.group == "console_scripts"}
    for tool in ("train", "test", "predict", "convert-checkpoint", "visualize-tokens", "browse-scenes", "demo"):
        module = commands[f"mmvit-{tool}"].partition(":")[0]
        assert (REPOSITORY / f"{module.replace('.', '/')}.py").is_file()


def lookup(folder: Path, cwd: Path) -> subprocess.CompletedProcess:
    """Inherit from one of our configs by name, in an interpreter that has ``folder`` as its first site folder."""
    (cwd / "mine.py").write_text("_base_ = ['mmvit_plugins::stvit/upernet_scenes.py']\nmodel = dict(train_cfg=None)\n")
    code = f"""
import site, sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in str(finder)]  # that of the checkout
for name in [name for name in sys.modules if name.startswith("__editable__")]:
    del sys.modules[name]  # its namesake in the folder would not be imported
before = list(sys.path); sys.path.insert(0, {str(folder)!r}); site.addsitedir({str(folder)!r})
sys.path[:] = [{str(folder)!r}, *(path for path in sys.path if path not in before), *before]
import mmvit_plugins; mmvit_plugins.ensure_config_scopes()
from mmengine.config import Config
config = Config.fromfile("mine.py")
print(mmvit_plugins.__file__, config.model.backbone.type)
"""
    return run(sys.executable, "-c", code, cwd=cwd)


def test_configs_are_found_by_name_in_an_installed_wheel(wheel, tmp_path):
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    result = lookup(site, tmp_path)
    assert result.stdout.split()[-2:] == [str(site / "mmvit_plugins" / "__init__.py"), "mmvit_plugins.STViT"], (
        result.stderr
    )


def test_configs_are_found_by_name_in_an_editable_install(source, tmp_path):
    editable = build(source, "build_editable", tmp_path / "out")
    site = tmp_path / "site"
    zipfile.ZipFile(editable).extractall(site)
    result = lookup(site, tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip().endswith("mmvit_plugins.STViT")
    assert str(source / "mmvit_plugins") in result.stdout
    link = source / "mmvit_plugins" / ".mim" / "configs"
    assert link.is_symlink() and link.resolve() == source / "configs"


def test_a_source_without_its_configs_is_refused(source, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(source, broken, ignore=shutil.ignore_patterns("configs", ".mim"))
    result = run(sys.executable, "setup.py", "-q", "build_py", "--build-lib", tmp_path / "lib", cwd=broken)
    assert result.returncode != 0
    assert f"{broken / 'configs'} is missing" in result.stderr
