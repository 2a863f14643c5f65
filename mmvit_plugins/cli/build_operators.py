"""Build mmcv with its compiled operators once, keep the wheel, install it.

mmcv comes as a source archive. A plain ``pip install`` builds it where no torch is, in seconds, and then without
compiled operators: enough for MMSegmentation and MMPretrain, not for MMDetection. The build with operators takes many
minutes, and pip's own wheel cache cannot tell the two apart. So the wheel goes to a folder of ours below the user's
cache, named by everything that it depends on, and is found there the next time.

A wheel is built in a temporary folder and moved into its place when it is whole: an interrupted build leaves nothing
that could be mistaken for a result. Progress is printed all along.
"""

import argparse
import contextlib
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

__all__ = ["cache_root", "find_wheel", "main", "wheel_key"]

# setuptools 82 removed pkg_resources, which mmcv 2.1.0 imports; torch's build extension wants a recent one.
BUILD_REQUIREMENTS = ("setuptools>=80,<82", "wheel", "ninja", "packaging", "psutil")
# Each distribution that installs the module mmcv, and the one to build in its place.
MMCV_DISTRIBUTIONS = {"onedl-mmcv": "onedl-mmcv", "mmcv": "mmcv", "mmcv-lite": "mmcv"}
NINJA_STEP = re.compile(r"\[(\d+)/(\d+)\].*?([\w.-]+\.(?:cpp|cc|cu|mm))\b")
HEARTBEAT_SECONDS = 30
BYTES_PER_JOB = 2 * 1024**3


class BuildError(RuntimeError):
    """The operators could not be built or installed; the message says what to change."""


def cache_root() -> Path:
    """The folder below which the wheels are kept: ``$MMVIT_CACHE`` or ``mmvit_plugins`` in the user's cache."""
    explicit = os.environ.get("MMVIT_CACHE")
    if explicit:
        return Path(explicit).expanduser() / "wheels"
    cache_home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache_home).expanduser() / "mmvit_plugins" / "wheels"


def installed_mmcv() -> str | None:
    """The mmcv to build for what is installed, such as ``onedl-mmcv==2.3.6``; None where there is none."""
    for installed, built in MMCV_DISTRIBUTIONS.items():
        with contextlib.suppress(metadata.PackageNotFoundError):
            return f"{built}=={metadata.version(installed)}"
    return None


def wheel_key(requirement: str, torch_version: str, device: str) -> str:
    """The name of the wheel's folder: what a compiled wheel depends on.

    Args:
        requirement: The mmcv that is built, as ``name==version``.
        torch_version: ``torch.__version__``, its local part included: the compiled code links against it.
        device: ``cpu`` or ``cuda``: the kernels that are compiled.
    """
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    parts = (f"torch{torch_version}", requirement.replace("==", ""), python, device, sysconfig.get_platform())
    return re.sub(r"[^\w.+-]", "_", "-".join(parts))


def has_operators(wheel: Path) -> bool:
    """Whether a wheel is whole and carries the compiled extension ``mmcv/_ext``."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            return any(re.match(r"mmcv/_ext\b.*\.(so|pyd)$", name) for name in archive.namelist())
    except (OSError, zipfile.BadZipFile):
        return False


def find_wheel(folder: Path) -> Path | None:
    """The usable wheel with operators in ``folder``, or None."""
    return next((wheel for wheel in sorted(folder.glob("*.whl")) if has_operators(wheel)), None)


def _torch_facts() -> tuple[str, str]:
    """``torch.__version__`` and the device that mmcv's build will choose."""
    try:
        import torch
    except ImportError as error:
        raise BuildError(
            f"torch cannot be imported by {sys.executable} ({error}): the operators link against it. "
            "Install it first, e.g. `pip install torch==2.10.0 torchvision==0.25.0`."
        ) from error
    cuda = torch.cuda.is_available() or os.environ.get("FORCE_CUDA") == "1"
    return torch.__version__, "cuda" if cuda else "cpu"


def _check_compiler() -> None:
    """Say before a long build what is missing for it."""
    compiler = os.environ.get("CXX", "c++").split()[0]
    if not (shutil.which(compiler) or shutil.which("g++")):
        raise BuildError(f"no C++ compiler: looked for {compiler!r} and 'g++' on PATH. On Debian: apt-get install g++.")
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if not header.exists():
        raise BuildError(f"the headers of this Python are missing: {header}. On Debian: apt-get install python3-dev.")


def _jobs() -> int:
    """Compiler processes at a time: one per usable core, as far as memory allows."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(ValueError, OSError, AttributeError):
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
        return max(1, min(cores, memory // BYTES_PER_JOB))
    return cores


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """One build of a key at a time; a second process waits and then finds the wheel."""
    try:
        import fcntl
    except ImportError:  # not a POSIX system: two builds at once cost time, nothing else
        yield
        return
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("Another process builds the same operators: waiting for it.", flush=True)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _run_with_progress(command: list[str], env: dict[str, str], log: Path) -> int:
    """Run ``command``, write its output to ``log`` and print the compiler's steps, or a sign of life every 30 s."""
    started = time.monotonic()

    def say(text: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - started), 60)
        print(f"  {minutes:2d}:{seconds:02d}  {text}", flush=True)

    process = subprocess.Popen(
        command,
        env=env,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    lines: queue.Queue[str | None] = queue.Queue()

    def pump() -> None:
        for line in process.stdout:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=pump, daemon=True).start()
    try:
        with log.open("w") as file:
            while True:
                try:
                    line = lines.get(timeout=HEARTBEAT_SECONDS)
                except queue.Empty:
                    say("still working")
                    continue
                if line is None:
                    break
                file.write(line)
                step = NINJA_STEP.search(line)
                if step:
                    say(f"compiled {step[1]} of {step[2]}: {step[3]}")
    except BaseException:  # interrupted: pip, ninja and the compilers go as well
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM) if hasattr(os, "killpg") else process.terminate()
        raise
    return process.wait()


def build_wheel(requirement: str, folder: Path) -> Path:
    """Build the wheel of ``requirement`` with operators and move it into ``folder`` when it is whole."""
    _check_compiler()
    name = requirement.partition("==")[0]
    pip = [sys.executable, "-m", "pip", "--no-input", "--disable-pip-version-check"]
    print(f"Installing what the build needs: {' '.join(BUILD_REQUIREMENTS)}", flush=True)
    if subprocess.call([*pip, "install", "--quiet", *BUILD_REQUIREMENTS], stdin=subprocess.DEVNULL):
        raise BuildError(f"pip could not install {', '.join(BUILD_REQUIREMENTS)}; its messages are above.")
    env = dict(os.environ)
    env.setdefault("MAX_JOBS", str(_jobs()))
    env["MMCV_WITH_OPS"] = "1"
    env["CFLAGS"] = f"{env.get('CFLAGS', '')} -g0".strip()  # no debug symbols: a smaller file in less time
    # torch looks for the program ninja on PATH, and pip has put it beside this interpreter.
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", "")])
    for stale in folder.glob(".build-*"):  # left by a killed build; the lock says that none is running
        shutil.rmtree(stale, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=".build-", dir=folder) as scratch:
        env["TMPDIR"] = scratch  # what pip leaves there when it is interrupted goes as well
        log = folder / "build.log"
        print(f"Building {requirement} with operators, {env['MAX_JOBS']} at a time; full output in {log}", flush=True)
        options = ["--no-deps", "--no-build-isolation", "--no-cache-dir", "--no-binary", name, "--verbose"]
        code = _run_with_progress([*pip, "wheel", *options, "--wheel-dir", scratch, requirement], env, log)
        wheel = find_wheel(Path(scratch))
        if code or wheel is None:
            tail = "".join(log.read_text(errors="replace").splitlines(keepends=True)[-25:])
            reason = f"pip ended with status {code}" if code else "the wheel has no compiled extension mmcv/_ext"
            raise BuildError(f"{tail}\nThe operators of {requirement} were not built: {reason}. Full output: {log}")
        return wheel.replace(folder / wheel.name)


def operators_error() -> str | None:
    """Runs one operator of the installed mmcv in a process of its own; what goes wrong there, or None."""
    check = "import torch; from mmcv.ops import nms; nms(torch.eye(4)[2:], torch.ones(2), 0.5)"
    # From another folder: a checkout of mmcv in the current one must not shadow the installed package.
    result = subprocess.run([sys.executable, "-c", check], check=False, cwd=sys.prefix, capture_output=True, text=True)
    return result.stderr.strip() or "unknown" if result.returncode else None


def install_wheel(wheel: Path) -> None:
    """Put ``wheel`` in the place of the installed mmcv and see that its operators run."""
    pip = [sys.executable, "-m", "pip", "--no-input", "--disable-pip-version-check"]
    with contextlib.suppress(metadata.PackageNotFoundError):
        metadata.version("mmcv-lite")  # the same module under another name: both together would be a muddle
        subprocess.call([*pip, "uninstall", "--yes", "mmcv-lite"], stdin=subprocess.DEVNULL)
    if subprocess.call([*pip, "install", "--force-reinstall", "--no-deps", str(wheel)], stdin=subprocess.DEVNULL):
        raise BuildError(f"pip could not install {wheel}; its messages are above.")
    error = operators_error()
    if error:
        raise BuildError(f"{error}\n{wheel} is installed, but its operators do not run; `--rebuild` makes it anew.")


def main(argv: list[str] | None = None) -> int:
    """Build or find the wheel for the installed torch and mmcv and install it; returns 0, or 1 after a message."""
    parser = argparse.ArgumentParser(prog="mmvit-build-operators", description=__doc__.partition("\n")[0])
    parser.add_argument("--mmcv", metavar="NAME==VERSION", help="what to build (default: the mmcv that is installed)")
    parser.add_argument("--no-install", action="store_true", help="only fill the wheel folder")
    parser.add_argument("--rebuild", action="store_true", help="build even where a wheel is kept")
    args = parser.parse_args(argv)
    requirement = args.mmcv or installed_mmcv()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # clean up as after Ctrl-C
    try:
        if not (args.no_install or args.rebuild or args.mmcv or operators_error()):
            print(f"The operators of {requirement} are installed and run.")
            return 0
        if not requirement or "==" not in requirement:
            raise BuildError(
                f"which mmcv? Got {requirement!r}; give --mmcv NAME==VERSION, e.g. --mmcv onedl-mmcv==2.3.6."
            )
        torch_version, device = _torch_facts()
        folder = cache_root() / wheel_key(requirement, torch_version, device)
        folder.mkdir(parents=True, exist_ok=True)
        with _lock(folder / ".lock"):
            wheel = None if args.rebuild else find_wheel(folder)
            print(f"Using the kept wheel {wheel}" if wheel else f"No wheel with operators in {folder} yet.", flush=True)
            wheel = wheel or build_wheel(requirement, folder)
        if not args.no_install:
            install_wheel(wheel)
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{'Kept' if args.no_install else 'Installed'} mmcv with operators: {wheel}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
