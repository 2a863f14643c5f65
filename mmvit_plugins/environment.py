"""What the surrounding installation must offer, and a message with the fix where it does not.

The mm libraries exist in two lines with the same import names: OpenMMLab's (``mmengine``, ``mmcv``, ...) and the
maintained fork (``onedl-mmengine``, ``onedl-mmcv``, ...). Most trouble comes from there: both lines in one environment,
versions that do not fit, mmcv without its compiled operators. The checks read the metadata of the installed
distributions, so they cost about a third of a second and import no host library.

Example:
    >>> find_problems(["numpy"])
    []
"""

import importlib
import importlib.util
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import ModuleType

__all__ = [
    "HOSTS",
    "UnsuitableEnvironment",
    "add_config_scope",
    "check_environment",
    "configs_folder",
    "find_problems",
    "has_compiled_operators",
    "require",
]

SCOPE = "mmvit_plugins"


class UnsuitableEnvironment(ImportError):
    """Something that was asked for is missing, too old, installed twice or not compiled; the message names the fix."""


@dataclass(frozen=True)
class Requirement:
    """A module that the package can need: its distribution in each line, oldest version, and the modules below it."""

    onedl: str
    openmmlab: str
    minimum: dict[str, str]
    needs: tuple[str, ...] = ()
    compiled_operators: bool = False

    @property
    def fix(self) -> str:
        """The pip commands that install it, one for each line."""
        if self.onedl == self.openmmlab:
            return f'`pip install "{self.onedl}>={self.minimum[self.onedl]}"`'
        new, old = (f'"{name}>={self.minimum[name]}"' for name in (self.onedl, self.openmmlab))
        return f"`pip install {new}` (maintained line) or `pip install {old}` (OpenMMLab's line), never both"


def _both_lines(
    onedl: str, openmmlab: str, versions: tuple[str, str], *needs: str, operators: bool = False
) -> Requirement:
    return Requirement(onedl, openmmlab, dict(zip((onedl, openmmlab), versions, strict=True)), needs, operators)


# The oldest versions that the tests have seen; docs/install.md lists the tested sets.
REQUIREMENTS: dict[str, Requirement] = {
    "numpy": Requirement("numpy", "numpy", {"numpy": "1.24"}),
    "torch": Requirement("torch", "torch", {"torch": "2.4"}),
    "mmengine": _both_lines("onedl-mmengine", "mmengine", ("0.10.8", "0.10.7"), "torch"),
    "mmcv": _both_lines("onedl-mmcv", "mmcv", ("2.3.0", "2.1.0"), "mmengine"),
    "mmpretrain": _both_lines("onedl-mmpretrain", "mmpretrain", ("1.3.0", "1.2.0"), "mmcv"),
    "mmseg": _both_lines("onedl-mmsegmentation", "mmsegmentation", ("1.4.0", "1.2.2"), "mmcv"),
    "mmdet": _both_lines("onedl-mmdetection", "mmdet", ("3.5.0", "3.3.0"), "mmcv", operators=True),
}
#: The host libraries, by the ``default_scope`` that a config of theirs names.
HOSTS = ("mmpretrain", "mmdet", "mmseg")
BUILD_OPERATORS = (
    "`make build-ops` in a checkout of mmvit_plugins, or `mmvit-build-operators` (about 9 minutes on 2 cores)"
)


def _release(version: str) -> tuple[int, ...]:
    """The numbers of a version: ``2.10.0rc1+cu128`` -> (2, 10, 0). Enough to compare with a minimum."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in match.group().split(".")) if match else ()


def _owners(module: str, installed: dict[str, list[str]]) -> list[str]:
    """The distributions that install the top-level ``module``, sorted, each once."""
    return sorted({re.sub(r"[-_.]+", "-", name).lower() for name in installed.get(module, [])})


def has_compiled_operators() -> bool:
    """Whether the installed mmcv carries the compiled extension ``mmcv._ext``; imports nothing."""
    spec = importlib.util.find_spec("mmcv")
    folders = (spec.submodule_search_locations if spec else None) or []
    return any(path.suffix in (".so", ".pyd") for folder in folders for path in Path(folder).glob("_ext.*"))


def _problems_of(module: str, installed: dict[str, list[str]]) -> list[str]:
    """What keeps one module from being used, without those below it."""
    requirement = REQUIREMENTS[module]
    owners = _owners(module, installed)
    if not owners:
        # A module on PYTHONPATH has no metadata: it is there, and its version is its user's affair.
        if importlib.util.find_spec(module) is None:
            return [f"{module} is not installed for {sys.executable}: {requirement.fix}."]
    elif len(owners) > 1:
        found = " and ".join(f"{name} {metadata.version(name)}" for name in owners)
        return [
            f"{len(owners)} distributions own the module {module}: {found}. The one that came last has overwritten files "
            f"of the other. Keep one line: `pip uninstall -y {' '.join(owners)}`, then install one of them again."
        ]
    else:
        minimum, version = requirement.minimum.get(owners[0]), metadata.version(owners[0])
        if minimum and _release(version) < _release(minimum):
            return [
                f'{owners[0]} {version} is too old, {minimum} is the oldest that works: `pip install "{owners[0]}>={minimum}"`.'
            ]
    if requirement.compiled_operators and not has_compiled_operators():
        return [
            f"{module} needs mmcv with compiled operators (mmcv._ext), and the installed mmcv has none. Build them: {BUILD_OPERATORS}."
        ]
    return []


def find_problems(modules: Iterable[str]) -> list[str]:
    """What keeps ``modules`` and all that they need from being used, each with the command that mends it.

    Args:
        modules: Import names out of ``REQUIREMENTS``: ``torch``, ``mmengine``, ``mmcv``, ``mmpretrain``, ``mmdet``, ``mmseg``.

    Returns:
        One sentence for each problem, the deepest module first; empty if there is none.

    Raises:
        ValueError: For a module that this package never needs.
    """
    ordered: list[str] = []

    def visit(module: str) -> None:
        if module not in REQUIREMENTS:
            raise ValueError(f"unknown module {module!r}; known are {', '.join(REQUIREMENTS)}.")
        for below in REQUIREMENTS[module].needs:
            visit(below)
        if module not in ordered:
            ordered.append(module)

    for module in modules:
        visit(module)
    installed = dict(metadata.packages_distributions())
    return [problem for module in ordered for problem in _problems_of(module, installed)]


def check_environment(*modules: str) -> None:
    """Raise if ``modules`` cannot be used; the tools call it with a config's ``default_scope`` before any long work.

    Raises:
        UnsuitableEnvironment: With every problem and its fix, one a line.
    """
    problems = find_problems(modules)
    if problems:
        raise UnsuitableEnvironment("\n".join(problems))


def require(module: str) -> ModuleType:
    """Import a host library that is needed only here and now.

    Args:
        module: Import name, one of ``REQUIREMENTS``.

    Returns:
        The imported module.

    Raises:
        UnsuitableEnvironment: If it is missing or unfit, with the command that mends it.
    """
    loaded = sys.modules.get(module)
    if loaded is not None and not REQUIREMENTS[module].compiled_operators:
        return loaded
    check_environment(module)
    try:
        if REQUIREMENTS[module].compiled_operators:
            importlib.import_module("torch")  # the extension links against its libraries
            importlib.import_module("mmcv._ext")
        return importlib.import_module(module)
    except (ImportError, AssertionError) as error:  # the hosts assert the range of mmcv versions that they accept
        raise UnsuitableEnvironment(
            f"{module} is installed but cannot be imported: {error}\n{_advice(str(error))}"
        ) from error


def _advice(error: str) -> str:
    """What most often mends an import error of an installed host library."""
    if "libGL" in error or "libgthread" in error or "libxcb" in error:
        return "OpenCV looks for a screen: `pip install --force-reinstall --no-deps opencv-python-headless`."
    if "pkg_resources" in error:
        return 'setuptools 82 removed pkg_resources, which OpenMMLab\'s line imports: `pip install "setuptools<82"`.'
    if "_ext" in error or "undefined symbol" in error:
        return f"mmcv's operators were compiled for another torch or Python. Build them again: {BUILD_OPERATORS}."
    return "docs/install.md lists the sets of versions that are tested together."


def configs_folder() -> Path:
    """The folder of the shipped configs: the checkout's ``configs``, or ``.mim/configs`` of the installed package.

    Raises:
        FileNotFoundError: If neither is there, with the places looked at.
    """
    package = Path(__file__).resolve().parent
    # Beside the package lies configs/ only in a checkout: a wheel never puts it there.
    candidates = (package / ".mim" / "configs", package.parent / "configs")
    for folder in candidates:
        if (folder / "_base_").is_dir():
            return folder.resolve()
    looked = " and ".join(str(folder) for folder in candidates)
    raise FileNotFoundError(f"the shipped configs are missing: looked at {looked}. Install mmvit_plugins again.")


def add_config_scope() -> None:
    """Let mmengine's configs name ours as ``mmvit_plugins::stvit/upernet_ade20k.py``; other entries stay as they are.

    Raises:
        UnsuitableEnvironment: If mmengine cannot be imported.
    """
    require("mmengine")
    from mmengine.config.utils import MODULE2PACKAGE

    # mmengine looks the value up as a distribution first. mmengine 0.10.7 then joins that distribution's place with its
    # name, which is wrong for an editable install; a name that is no distribution leads both lines to the module's file.
    MODULE2PACKAGE.setdefault(SCOPE, f"{SCOPE}.registry")
