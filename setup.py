"""Metadata of mmvit-plugins, and the step that puts the configs into the package.

torch and the mm libraries are extras, never requirements: installing this package must not replace what is there.
"""

import os
import runpy
import shutil
import warnings
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
README = ROOT / "README.md"
PACKAGE = "mmvit_plugins"
# What mim and mmengine look for below <package>/.mim: `mmvit_plugins::` bases need the index beside the configs.
MIM_FILES = ("configs", "tools", "model-index.yml")
TOOLS = (
    "train",
    "test",
    "predict",
    "predict_points",
    "convert_checkpoint",
    "visualize_tokens",
    "browse_scenes",
    "search_exits",
    "search_sparsity",
    "benchmark",
    "run_multitask",
    "run_scenes",
    "demo",
    "build_operators",
)


def remove(path: Path) -> None:
    """Remove a file, a link or a folder, whichever is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def copy(source: Path, target: Path) -> None:
    """Copy a file or a folder without what Python leaves in it."""
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    else:
        shutil.copyfile(source, target)


class BuildWithConfigs(build_py):
    """``build_py`` that also fills ``mmvit_plugins/.mim``: copies in a wheel, links in an editable install."""

    def run(self) -> None:
        """Build the package afresh, so that a file deleted since the last build is not in the wheel, then add .mim."""
        if self.editable_mode:
            super().run()
            self.fill(ROOT / PACKAGE / ".mim", link=True)
            return
        remove(Path(self.build_lib, PACKAGE))
        super().run()
        self.fill(Path(self.build_lib, PACKAGE, ".mim"), link=False)

    @staticmethod
    def fill(folder: Path, link: bool) -> None:
        """Put ``MIM_FILES`` into ``folder``."""
        folder.mkdir(parents=True, exist_ok=True)
        for name in MIM_FILES:
            source, target = ROOT / name, folder / name
            if not source.exists():
                raise FileNotFoundError(f"{source} is missing: build from a complete checkout or source archive.")
            remove(target)
            if link:
                try:
                    target.symlink_to(os.path.relpath(source, folder), target_is_directory=source.is_dir())
                    continue
                except OSError as error:  # Windows without the privilege
                    warnings.warn(
                        f"{target} is a copy ({error}): install again after a change of {name}.", stacklevel=1
                    )
            copy(source, target)


setup(
    name="mmvit-plugins",
    version=runpy.run_path(str(ROOT / PACKAGE / "version.py"))["__version__"],
    description="Efficient vision transformers for MMPretrain, MMDetection and MMSegmentation",
    long_description=README.read_text(encoding="utf-8") if README.exists() else "",
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.10",
    packages=find_packages(include=[PACKAGE, f"{PACKAGE}.*"]),
    cmdclass={"build_py": BuildWithConfigs},
    install_requires=["numpy>=1.24", "rich", "matplotlib"],
    extras_require={
        # The maintained line. Install torch and torchvision first, see docs/install.md.
        "onedl": [
            "onedl-mmengine>=0.10.12,<0.11",
            "onedl-mmcv>=2.3.6,<2.4",
            "onedl-mmpretrain>=1.3.6,<2",
            "onedl-mmdetection>=3.5.1,<4",
            "onedl-mmsegmentation>=1.4.2,<2",
        ],
        # OpenMMLab's last releases and what they need without saying so: pkg_resources, numpy 1, a text tokenizer.
        # mmcv is not listed: mmcv-lite and mmcv both serve, and plain pip cannot build mmcv 2.1.0 (docs/install.md).
        "openmmlab": [
            "mmengine>=0.10.7,<0.11",
            "mmpretrain>=1.2.0,<2",
            "mmdet>=3.3.0,<4",
            "mmsegmentation>=1.2.2,<2",
            "numpy<2",
            "setuptools<82",
            "ftfy",
            "regex",
        ],
        "export": ["onnx", "onnxruntime", "onnxscript"],
        # tools/search_*.py; scikit-learn holds the digits of configs/dvt/cls_digits.py.
        "search": ["optuna>=4", "scikit-learn"],
        "dev": [
            "pytest>=8",
            "pytest-xdist>=3.6",
            "hypothesis>=6.100",
            "ruff>=0.12",
            "timm>=1.0",
            "setuptools>=80,<82",
            "wheel",
            "ninja",
            "packaging",
            "psutil",
            "scikit-image",
            "scikit-learn",
        ],
    },
    entry_points={
        "console_scripts": [f"mmvit-{tool.replace('_', '-')} = {PACKAGE}.cli.{tool}:main" for tool in TOOLS],
    },
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Science/Research",
        "Operating System :: OS Independent",
        "Programming Language :: Python :: 3",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Scientific/Engineering :: Image Recognition",
    ],
    zip_safe=False,
)
