"""Speed and memory of a backbone beside the plain reference of the tests (the authors' way of computing it).

    python tools/benchmark_reference.py                      # STViT-small, inference at 224, 512, 1024
    python tools/benchmark_reference.py --family context_cluster
    python tools/benchmark_reference.py --family efficientvit --arch b1 --timm efficientvit_b1
    python tools/benchmark_reference.py --train --sizes 224  # a training step (forward, backward)

Same weights, same input, same process, batch 1, float32 on the CPU. Each round times a 2048 x 2048 matrix product, the
reference and ours in turn, so that the ratios hold on a machine whose speed drifts; medians are printed. `share` is a
model's FLOP/s as a share of the matrix product's. Peak memory comes from one process for each model. Run it on an
otherwise idle machine: a second busy process makes timings with two threads useless.
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT)
sys.path.insert(1, str(ROOT / "tests"))

from reference.context_cluster import ReferenceContextCluster  # noqa: E402
from reference.efficientvit import ReferenceEfficientViT  # noqa: E402
from reference.stvit import ReferenceSTViT  # noqa: E402

from mmvit_plugins.checkpoints import convert_official  # noqa: E402
from mmvit_plugins.models import ContextCluster, EfficientViT, STViT  # noqa: E402
from mmvit_plugins.models.backbones import context_cluster, efficientvit, stvit  # noqa: E402

MATRIX = 2048
#: Reference, ours, and the sizes of both. A reference takes an entry of the table and has ``forward_maps``.
FAMILIES = {
    "stvit": (ReferenceSTViT, STViT, stvit.ARCHS),
    "context_cluster": (ReferenceContextCluster, ContextCluster, context_cluster.ARCHS),
    "efficientvit": (ReferenceEfficientViT, EfficientViT, efficientvit.ARCHS),
}


def build(family: str, arch: str) -> dict[str, tuple[nn.Module, Callable[[Tensor], list[Tensor]]]]:
    """The two models with the same weights, and how to get their maps."""
    torch.manual_seed(0)
    reference_class, our_class, archs = FAMILIES[family]
    if arch not in archs:
        raise SystemExit(f"{family} has no arch {arch!r}; it has {', '.join(archs)}")
    reference, ours = reference_class(**archs[arch]), our_class(arch=arch)
    state, _ = convert_official(reference.state_dict(), family)
    ours.load_state_dict({k[len("backbone.") :]: v for k, v in state.items() if k.startswith("backbone.")})
    return {"reference": (reference, reference.forward_maps), "ours": (ours, ours)}


def build_others(ours: nn.Module, timm_name: str | None, train: bool) -> dict[str, tuple[nn.Module, Callable]]:
    """What else to time: our deploy form, and timm's model (its own weights) in both memory formats."""
    models: dict[str, tuple[nn.Module, Callable]] = {}
    if hasattr(ours, "switch_to_deploy") and not train:
        deployed = copy.deepcopy(ours).switch_to_deploy()
        models["deploy"] = (deployed, deployed)
    if timm_name:
        import timm

        for name, layout in (("timm", torch.contiguous_format), ("timm_channels_last", torch.channels_last)):
            model = timm.create_model(timm_name, features_only=True).to(memory_format=layout)
            models[name] = (model, lambda x, m=model, f=layout: m(x.contiguous(memory_format=f)))
    return models


def step(model: nn.Module, maps: Callable[[Tensor], list[Tensor]], x: Tensor, train: bool) -> None:
    """One forward pass, and one backward pass in training."""
    if not train:
        with torch.inference_mode():
            maps(x)
        return
    model.zero_grad(set_to_none=True)
    sum(m.square().mean() for m in maps(x)).backward()


def seconds(function: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def time_size(family: str, arch: str, size: int, rounds: int, train: bool, timm_name: str | None) -> dict[str, float]:
    """Medians over rounds at one size."""
    models = build(family, arch)
    models.update(build_others(models["ours"][0], timm_name, train))
    x = torch.rand(1, 3, size, size)
    for model, _ in models.values():
        model.train(train)
    reference, maps = models["reference"]
    if not train:  # torch counts the backward pass of grouped convolutions as if they were dense
        with FlopCounterMode(display=False) as counter:
            step(reference, maps, x, train)
        flops = counter.get_total_flops()
        with torch.inference_mode():
            got, wanted = models["ours"][1](x), maps(x)
        # A reference may return maps of its stem as well, before those of the stages.
        pairs = zip(got, wanted[-len(got) :], strict=True)
        difference = max(((a - b).abs().max() / b.std()).item() for a, b in pairs)
    a, b = torch.rand(MATRIX, MATRIX), torch.rand(MATRIX, MATRIX)
    calls = {"matrix": lambda: a @ b}
    calls.update({n: lambda m=m, f=f: step(m, f, x, train) for n, (m, f) in models.items()})
    for call in calls.values():
        call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            # Short calls: the fastest of three, so that one interruption does not decide.
            times[name].append(min(seconds(call) for _ in range(3 if size <= 512 or name == "matrix" else 1)))
    rate = 2 * MATRIX**3 / statistics.median(times["matrix"])
    median = {name: statistics.median(values) for name, values in times.items()}
    row = {
        "size": size,
        "reference_ms": round(median["reference"] * 1e3, 1),
        "ours_ms": round(median["ours"] * 1e3, 1),
        "speedup": round(statistics.median(r / o for r, o in zip(times["reference"], times["ours"], strict=True)), 2),
        "matrix_gflops": round(rate / 1e9, 1),
    }
    row.update({f"{name}_ms": round(median[name] * 1e3, 1) for name in models if name not in ("reference", "ours")})
    if not train:
        row.update(
            gflop=round(flops / 1e9, 1),
            reference_share=round(flops / median["reference"] / rate, 3),
            ours_share=round(flops / median["ours"] / rate, 3),
            largest_difference_in_std=float(f"{difference:.1e}"),
        )
    return row


def peak_memory(family: str, arch: str, name: str, size: int, train: bool) -> float:
    """MiB that one step adds to the process, measured in a process of its own."""
    command = [sys.executable, __file__, "--family", family, "--arch", arch, "--sizes", str(size), "--memory-of", name]
    out = subprocess.run(command + ["--train"] * train, capture_output=True, text=True, check=True)
    return float(out.stdout.strip().splitlines()[-1])


def measure_memory(family: str, arch: str, name: str, size: int, train: bool) -> None:
    """Print the growth of the peak resident size by one step, in MiB."""
    model, maps = build(family, arch)[name]
    model.train(train)
    step(model, maps, torch.rand(1, 3, 64, 64), train)
    x = torch.rand(1, 3, size, size)
    # Linux: forget the peak of the imports.
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    step(model, maps, x, train)
    print((resident("VmHWM") - before) / 1024)


def resident(field: str) -> int:
    """A line of /proc/self/status in KiB: VmRSS is the resident size, VmHWM its peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field + ":"))


def main() -> None:
    """Print a table, and JSON with ``--out``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", default="stvit", choices=list(FAMILIES))
    parser.add_argument("--arch", default="small")
    parser.add_argument("--sizes", type=int, nargs="+", default=[224, 512, 1024], help="height = width in pixels")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--train", action="store_true", help="time forward and backward instead of inference")
    parser.add_argument("--timm", metavar="NAME", help="time timm's model of that name too (pip install timm)")
    parser.add_argument("--no-memory", action="store_true", help="leave the processes that measure memory out")
    parser.add_argument("--out", type=Path, help="write the results as JSON")
    parser.add_argument("--memory-of", choices=["reference", "ours"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.memory_of:
        measure_memory(args.family, args.arch, args.memory_of, args.sizes[0], args.train)
        return
    rows = []
    for size in args.sizes:
        row = time_size(args.family, args.arch, size, args.rounds, args.train, args.timm)
        names = () if args.no_memory else ("reference", "ours")
        memory = {name: peak_memory(args.family, args.arch, name, size, args.train) for name in names}
        row.update({f"{name}_mib": round(value) for name, value in memory.items()})
        rows.append(row)
        print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    if args.out:
        about = dict(torch=torch.__version__, machine=platform.processor() or platform.machine(), **vars(args))
        args.out.write_text(json.dumps(dict(settings=about, rows=rows), indent=2, default=str) + "\n")


if __name__ == "__main__":
    main()
