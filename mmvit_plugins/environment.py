"""What the surrounding installation must offer, and a message with the fix where it does not.

The mm libraries exist in two lines with the same import names: OpenMMLab's (``mmengine``, ``mmcv``, ...) and the
maintained fork (``onedl-mmengine``, ``onedl-mmcv``, ...). Most trouble comes from there: both lines in one environment,
versions that do not fit, mmcv without its compiled operators. The checks read the metadata of the installed
distributions, so they cost about a third of a second and import no host library.

Example:
    >>> find_problems(["numpy"])
    []
"""

import functools
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
    """A module that the package can need.

    Attributes:
        oldest: The oldest tested version of each distribution that installs it, the maintained line first.
        needs: The modules below it.
        compiled: The distributions that import mmcv's compiled operators when they are imported.
    """

    oldest: dict[str, str]
    needs: tuple[str, ...] = ()
    compiled: tuple[str, ...] = ()

    @property
    def fix(self) -> str:
        """The pip commands that install it, one for each line."""
        commands = [f'`pip install "{name}>={version}"`' for name, version in self.oldest.items()]
        if len(commands) == 1:
            return commands[0]
        return f"{commands[0]} (maintained line) or {commands[1]} (OpenMMLab's line), never both; see docs/install.md"


REQUIREMENTS: dict[str, Requirement] = {
    "numpy": Requirement({"numpy": "1.24"}),
    "torch": Requirement({"torch": "2.4"}),
    "mmengine": Requirement({"onedl-mmengine": "0.10.8", "mmengine": "0.10.7"}, ("torch",)),
    "mmcv": Requirement({"onedl-mmcv": "2.3.0", "mmcv": "2.1.0"}, ("mmengine",)),
    "mmpretrain": Requirement({"onedl-mmpretrain": "1.3.0", "mmpretrain": "1.2.0"}, ("mmcv",)),
    "mmseg": Requirement(
        {"onedl-mmsegmentation": "1.4.0", "mmsegmentation": "1.2.2"}, ("mmcv",), compiled=("mmsegmentation",)
    ),
    "mmdet": Requirement(
        {"onedl-mmdetection": "3.5.0", "mmdet": "3.3.0"}, ("mmcv",), compiled=("onedl-mmdetection", "mmdet")
    ),
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


def _owners() -> dict[str, list[str]]:
    """The distributions that install each top-level module, sorted, each once."""
    return {
        module: sorted({re.sub(r"[-_.]+", "-", name).lower() for name in names})
        for module, names in metadata.packages_distributions().items()
    }


def _needs_operators(module: str, owners: list[str]) -> bool:
    """Whether importing ``module`` imports mmcv's compiled operators: mmseg does so in OpenMMLab's line only."""
    requirement = REQUIREMENTS[module]
    known = set(owners) & set(requirement.oldest)
    # Of a copy on PYTHONPATH the line is not known: in need only if both lines are.
    return bool(known & set(requirement.compiled)) if known else set(requirement.compiled) == set(requirement.oldest)


def has_compiled_operators() -> bool:
    """Whether the installed mmcv carries the compiled extension ``mmcv._ext``; imports nothing."""
    spec = importlib.util.find_spec("mmcv")
    folders = (spec.submodule_search_locations if spec else None) or []
    return any(path.suffix in (".so", ".pyd") for folder in folders for path in Path(folder).glob("_ext.*"))


def _problem_of(module: str, owners: list[str]) -> str | None:
    """What keeps one module from being used, those below it and its operators aside."""
    requirement = REQUIREMENTS[module]
    if not owners:
        # A module on PYTHONPATH has no metadata: it is there, and its version is its user's affair.
        if importlib.util.find_spec(module) is None:
            return f"{module} is not installed for {sys.executable}: {requirement.fix}."
        return None
    if len(owners) > 1:
        found = " and ".join(f"{name} {metadata.version(name)}" for name in owners)
        return (
            f"{len(owners)} distributions own the module {module}: {found}. The later one has overwritten files of the "
            f"other. Keep one line: `pip uninstall -y {' '.join(owners)}`, then install one of them again."
        )
    name, version = owners[0], metadata.version(owners[0])
    minimum = requirement.oldest.get(name)
    if minimum and _release(version) < _release(minimum):
        return f'{name} {version} is too old, the oldest that works is {minimum}: `pip install "{name}>={minimum}"`.'
    return None


def find_problems(modules: Iterable[str]) -> list[str]:
    """What keeps ``modules`` and all that they need from being used, each with the command that mends it.

    Args:
        modules: Import names out of ``REQUIREMENTS``: ``torch``, ``mmengine``, ``mmcv``, ``mmpretrain``, ``mmdet``,
            ``mmseg``, ``numpy``.

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
    owners = _owners()
    problems = [problem for module in ordered if (problem := _problem_of(module, owners.get(module, [])))]
    in_need = [module for module in ordered if _needs_operators(module, owners.get(module, []))]
    if in_need and importlib.util.find_spec("mmcv") and not has_compiled_operators():
        problems.append(
            f"{' and '.join(in_need)} cannot be used without mmcv's compiled operators (mmcv._ext), and the installed "
            f"mmcv has none. Build them: {BUILD_OPERATORS}."
        )
    return problems


def check_environment(*modules: str) -> None:
    """Raise if ``modules`` cannot be used; the tools call it with a config's ``default_scope`` before any long work.

    Raises:
        UnsuitableEnvironment: With every problem and its fix, one a line.
    """
    problems = find_problems(modules)
    if problems:
        raise UnsuitableEnvironment("\n".join(problems))


@functools.cache  # the metadata are read once, so that a transform may ask for every sample
def require(module: str) -> ModuleType:
    """Import a host library that is needed only here and now.

    Args:
        module: Import name, one of ``REQUIREMENTS``.

    Returns:
        The imported module.

    Raises:
        UnsuitableEnvironment: If it is missing or unfit, with the command that mends it.
    """
    check_environment(module)
    try:
        if module in HOSTS and _needs_operators(module, _owners().get(module, [])):
            # Not left to the host, whose models fail later. torch first: the extension links against it.
            importlib.import_module("torch")
            importlib.import_module("mmcv._ext")
        return importlib.import_module(module)
    except (ImportError, AssertionError) as error:  # the hosts assert the range of mmcv versions that they accept
        advice = _advice(str(error))
        raise UnsuitableEnvironment(f"{module} is installed but cannot be imported: {error}\n{advice}") from error


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

    # mmengine looks the value up as a distribution first, and 0.10.7 joins that distribution's place with its name,
    # wrong for an editable install. A module's name that is no distribution leads both lines to the module's folder.
    MODULE2PACKAGE.setdefault(SCOPE, f"{SCOPE}.registry")
