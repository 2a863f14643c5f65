"""The environment checks, against fake distributions in an interpreter that sees nothing else."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mmvit_plugins
from mmvit_plugins import environment

REPOSITORY = Path(__file__).resolve().parents[1]
ONEDL = {
    "torch": ("torch", "2.10.0"),
    "mmengine": ("onedl-mmengine", "0.10.12"),
    "mmcv": ("onedl-mmcv", "2.3.6"),
    "mmseg": ("onedl-mmsegmentation", "1.4.2"),
    "mmdet": ("onedl-mmdetection", "3.5.1"),
    "mmpretrain": ("onedl-mmpretrain", "1.3.6"),
}
OPENMMLAB = {
    "torch": ("torch", "2.4.1"),
    "mmengine": ("mmengine", "0.10.7"),
    "mmcv": ("mmcv", "2.1.0"),
    "mmseg": ("mmsegmentation", "1.2.2"),
    "mmdet": ("mmdet", "3.3.0"),
    "mmpretrain": ("mmpretrain", "1.2.0"),
}


class FakeSite:
    """A folder of fake distributions, and an interpreter that has only them, the standard library and the checkout."""

    def __init__(self, folder: Path, distributions: dict[str, tuple[str, str]]) -> None:
        self.folder = folder
        for module, (name, version) in distributions.items():
            self.add(module, name, version)

    def add(self, module: str, name: str, version: str, code: str = "") -> None:
        """Install ``module`` as distribution ``name``."""
        info = self.folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "top_level.txt").write_text(f"{module}\n")
        (self.folder / module).mkdir(exist_ok=True)
        (self.folder / module / "__init__.py").write_text(code)

    def run(self, code: str) -> str:
        """Run ``code`` with the module imported as ``environment``; its output."""
        start = f"import sys; sys.path += [{str(self.folder)!r}, {str(REPOSITORY)!r}]\n"
        command = [sys.executable, "-I", "-S", "-c", start + "from mmvit_plugins import environment\n" + code]
        result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600)
        assert result.returncode == 0, result.stderr
        return result.stdout

    def problems(self, *modules: str) -> list[str]:
        """What ``find_problems`` finds."""
        return json.loads(self.run(f"import json; print(json.dumps(environment.find_problems({list(modules)!r})))"))


@pytest.mark.parametrize("line", [ONEDL, OPENMMLAB])
def test_a_whole_line_has_no_problem(tmp_path, line):
    site = FakeSite(tmp_path, line)
    (tmp_path / "mmcv" / "_ext.cpython-311-x86_64-linux-gnu.so").touch()
    assert site.problems("mmpretrain", "mmseg", "mmdet") == []


def test_two_distributions_of_one_module_are_named(tmp_path):
    site = FakeSite(tmp_path, ONEDL)
    site.add("mmengine", "mmengine", "0.10.5")
    (problem,) = site.problems("mmseg")
    assert "own the module mmengine: mmengine 0.10.5 and onedl-mmengine 0.10.12" in problem
    assert "pip uninstall -y mmengine onedl-mmengine" in problem


def test_one_distribution_found_twice_is_no_clash(tmp_path):
    site = FakeSite(tmp_path, ONEDL)
    (tmp_path / "other").mkdir()
    FakeSite(tmp_path / "other", {"mmengine": ("OneDL.mmengine", "0.10.12")})
    found = site.run(f"sys.path.append({str(tmp_path / 'other')!r}); print(environment.find_problems(['mmseg']))")
    assert found.strip() == "[]"


@pytest.mark.parametrize(
    ("line", "module", "version", "minimum"),
    [(ONEDL, "torch", "2.3.1", "2.4"), (ONEDL, "mmengine", "0.10.7", "0.10.8"), (OPENMMLAB, "mmseg", "1.2.1", "1.2.2")],
)
def test_a_version_that_is_too_old_names_the_minimum(tmp_path, line, module, version, minimum):
    name = line[module][0]
    site = FakeSite(tmp_path, line | {module: (name, version)})
    (tmp_path / "mmcv" / "_ext.so").touch()
    (problem,) = site.problems("mmseg")
    assert f"{name} {version} is too old" in problem
    assert f'pip install "{name}>={minimum}"' in problem


def test_missing_torch_and_host_name_the_command_in_order(tmp_path):
    site = FakeSite(tmp_path, {key: value for key, value in ONEDL.items() if key not in ("torch", "mmseg")})
    torch, mmseg = site.problems("mmseg")
    assert "torch is not installed" in torch and '`pip install "torch>=2.4"`' in torch
    assert "mmseg is not installed" in mmseg
    assert "onedl-mmsegmentation" in mmseg and '"mmsegmentation>=' in mmseg


@pytest.mark.parametrize(
    ("line", "module", "in_need"),
    [
        (ONEDL, "mmdet", True),
        (ONEDL, "mmseg", False),
        (ONEDL, "mmpretrain", False),
        (OPENMMLAB, "mmdet", True),
        (OPENMMLAB, "mmseg", True),
        (OPENMMLAB, "mmpretrain", False),
    ],
)
def test_who_needs_compiled_operators(tmp_path, line, module, in_need):
    problems = FakeSite(tmp_path, line).problems(module)
    assert len(problems) == in_need
    if in_need:
        assert problems[0].startswith(f"{module} cannot be used without mmcv's compiled operators")
        assert "make build-ops" in problems[0] and "mmvit-build-operators" in problems[0]


def test_a_module_without_metadata_is_accepted(tmp_path):
    site = FakeSite(tmp_path, {key: value for key, value in ONEDL.items() if key != "mmseg"})
    (tmp_path / "mmseg").mkdir()
    (tmp_path / "mmseg" / "__init__.py").touch()
    assert site.problems("mmseg") == []


def test_an_unknown_module_is_refused():
    with pytest.raises(ValueError, match="unknown module 'mmyolo'; known are numpy, torch, mmengine"):
        environment.find_problems(["mmyolo"])


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        ("raise ImportError('libGL.so.1: cannot open shared object file')", "opencv-python-headless"),
        ("raise ImportError(\"No module named 'pkg_resources'\")", "setuptools<82"),
        ("raise ImportError('undefined symbol: _ZN3c10')", "mmvit-build-operators"),
        ("assert False, 'MMCV==2.9.0 is used but incompatible'", "docs/install.md"),
    ],
)
def test_require_explains_an_import_error(tmp_path, code, advice):
    site = FakeSite(tmp_path, {key: value for key, value in ONEDL.items() if key != "mmseg"})
    site.add("mmseg", "onedl-mmsegmentation", "1.4.2", code)
    out = site.run(
        "try: environment.require('mmseg')\nexcept environment.UnsuitableEnvironment as error: print(repr(error))"
    )
    assert "mmseg is installed but cannot be imported" in out
    assert advice in out


def test_require_imports_and_missing_operators_stop_mmdet_only(tmp_path):
    site = FakeSite(tmp_path, ONEDL)
    assert site.run("print(environment.require('mmseg').__name__)").strip() == "mmseg"
    out = site.run("try: environment.require('mmdet')\nexcept ImportError as error: print(error)")
    assert "compiled operators" in out


def test_the_package_alone_imports_without_anything(tmp_path):
    code = (
        "import mmvit_plugins; print(mmvit_plugins.__version__)\n"
        "try: mmvit_plugins.ensure_config_scopes()\nexcept ImportError as error: print(error)"
    )
    out = FakeSite(tmp_path, {}).run(code).splitlines()
    assert out[0] == mmvit_plugins.__version__
    assert "torch is not installed" in out[1] and "mmengine is not installed" in out[2]


@pytest.mark.parametrize(
    ("blocked", "code", "expected"),
    [
        # mmengine swallows an import error in registry.py: it must need mmengine alone.
        (["mmcv", "mmdet", "mmseg", "mmpretrain"], "print(registry.MODELS.scope)", "mmvit_plugins"),
        (["mmcv._ext", "mmdet", "mmseg", "mmpretrain"], "print(registry.MODELS.get('STViT').__name__)", "STViT"),
    ],
)
def test_registry_and_models_need_no_host(blocked, code, expected):
    block = f"import sys; sys.modules.update(dict.fromkeys({blocked!r}))\n"
    command = [sys.executable, "-c", f"{block}from mmvit_plugins import registry\n{code}"]
    result = subprocess.run(command, check=False, capture_output=True, text=True, cwd=REPOSITORY)
    assert result.stdout.strip() == expected, result.stderr


def test_config_scope_adds_one_entry_and_keeps_the_rest(monkeypatch):
    from mmengine.config import utils

    before = {key: value for key, value in utils.MODULE2PACKAGE.items() if key != "mmvit_plugins"}
    table = dict(before)
    monkeypatch.setattr(utils, "MODULE2PACKAGE", table)
    mmvit_plugins.ensure_config_scopes()
    mmvit_plugins.ensure_config_scopes()
    assert {key: value for key, value in table.items() if key not in before}.keys() == {"mmvit_plugins"}
    assert {key: table[key] for key in before} == before
    table["mmvit_plugins"] = "somebody's own"
    mmvit_plugins.ensure_config_scopes()
    assert table["mmvit_plugins"] == "somebody's own"


def test_configs_folder_is_the_checkouts_own_or_says_where_it_looked(monkeypatch, tmp_path):
    assert environment.configs_folder() == REPOSITORY / "configs"
    monkeypatch.setattr(environment, "__file__", str(tmp_path / "mmvit_plugins" / "environment.py"))
    with pytest.raises(FileNotFoundError) as error:
        environment.configs_folder()
    assert str(tmp_path / "mmvit_plugins" / ".mim" / "configs") in str(error.value)
    assert str(tmp_path / "configs") in str(error.value)


@settings(deadline=None)
@given(st.lists(st.integers(0, 99), min_size=1, max_size=4), st.sampled_from(["", "rc1", "+cu128", ".dev3", "a0+git"]))
def test_release_reads_the_numbers_before_any_suffix(numbers, suffix):
    assert environment._release(".".join(map(str, numbers)) + suffix)[: len(numbers)] == tuple(numbers)
