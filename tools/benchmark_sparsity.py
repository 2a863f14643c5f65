"""Time and memory of SparseViT at several pruning ratios, beside MMDetection's Swin with the same weights.

    python tools/benchmark_sparsity.py                           # tiny at 448 and 896, ratios 0, 0.6 and 0.8
    python tools/benchmark_sparsity.py --train --sizes 448       # a training step (forward, backward)
    python tools/benchmark_sparsity.py --memory --sizes 512 1024 # what a forward pass adds to the peak of a process

Batch 1, float32, CPU. Each round runs all models in turn, so that the ratios hold on a machine whose speed drifts; the
fastest round of each is printed, and the largest difference between MMDetection's maps and ours without pruning. FLOPs
count attention (two for a multiply-add). Run it on an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from mmengine.logging import MMLogger
from torch import Tensor, nn

sys.path[0] = str(Path(__file__).resolve().parent.parent)

from mmvit_plugins.benchmark import count_flops  # noqa: E402
from mmvit_plugins.benchmark.timing import resident_kib  # noqa: E402
from mmvit_plugins.models import SparseViT  # noqa: E402
from mmvit_plugins.models.backbones.sparsevit import ARCHS  # noqa: E402
from mmvit_plugins.models.backbones.sparsevit_weights import convert_sparsevit  # noqa: E402

HOST = "MMDetection's Swin"


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", default="tiny", choices=tuple(ARCHS))
    parser.add_argument("--sizes", type=int, nargs="+", default=[448, 896])
    parser.add_argument("--ratios", type=float, nargs="+", default=[0.6, 0.8], help="in all stages; 0 is always there")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--train", action="store_true", help="forward and backward")
    parser.add_argument("--memory", action="store_true", help="peak memory instead of time")
    parser.add_argument("--only", help=argparse.SUPPRESS)  # one model, for the memory of a process of its own
    return parser.parse_args()


def build(args: argparse.Namespace) -> tuple[nn.Module, SparseViT]:
    """MMDetection's Swin and ours with its weights."""
    from mmdet.models.backbones.swin import SwinTransformer

    torch.manual_seed(0)
    arch = ARCHS[args.arch]
    host = SwinTransformer(arch["dims"][0], depths=arch["depths"], num_heads=arch["heads"], drop_path_rate=0.0)
    ours = SparseViT(args.arch)
    ours.load_state_dict({key[len("backbone.") :]: v for key, v in convert_sparsevit(host.state_dict()).items()})
    return host, ours


def candidates(args: argparse.Namespace) -> tuple[nn.Module, SparseViT, dict[str, Callable[[Tensor], tuple]]]:
    """By name, what is measured."""
    host, ours = build(args)
    for model in (host, ours):
        model.train(args.train)

    def at(ratio: float) -> Callable[[Tensor], tuple]:
        def run(x: Tensor) -> tuple:
            ours.set_pruning_ratios(ratio)
            return ours(x)

        return run

    return host, ours, {HOST: host, **{f"ratio {r:g}": at(r) for r in (0.0, *args.ratios)}}


def step(run: Callable[[Tensor], tuple], x: Tensor, train: bool) -> None:
    """One forward pass, or one with its backward pass."""
    if train:
        sum(y.mean() for y in run(x)).backward()
    else:
        with torch.no_grad():
            run(x)


def report_times(args: argparse.Namespace) -> None:
    """A table for each size."""
    host, ours, models = candidates(args)
    count = sum(p.numel() for p in ours.parameters()) / 1e6
    what = "training step" if args.train else "inference"
    print(f"{args.arch}, {count:.2f} M parameters, torch {torch.__version__}, {args.threads} threads, {what}")
    for size in args.sizes:
        x = torch.randn(1, 3, size, size)
        flops = {}
        with torch.no_grad():
            for name, run in models.items():
                flops[name] = count_flops(lambda run=run, x=x: run(x))
            pairs = zip(host(x), models["ratio 0"](x), strict=True)
            difference = max(float((a - b).abs().max()) for a, b in pairs)
        best = dict.fromkeys(models, float("inf"))
        for _ in range(args.rounds):
            for name, run in models.items():
                start = time.perf_counter()
                step(run, x, args.train)
                best[name] = min(best[name], time.perf_counter() - start)
        print(f"{size} x {size}; largest difference without pruning {difference:.1e}")
        for name, seconds in best.items():
            share = seconds / best["ratio 0"]
            print(
                f"  {name:20} {flops[name] / 1e9:8.1f} GFLOP {seconds * 1e3:9.1f} ms {share:6.3f} of dense", flush=True
            )


def report_memory(args: argparse.Namespace) -> None:
    """MiB that a forward pass (or a training step) adds to the peak of a process of its own."""
    if args.only:
        _, _, models = candidates(args)
        run = models[args.only]
        step(run, torch.randn(1, 3, 64, 64), args.train)
        x = torch.randn(1, 3, args.sizes[0], args.sizes[0])
        Path("/proc/self/clear_refs").write_text("5")  # Linux: forget the peak of imports and of the first call
        before = resident_kib("VmRSS")
        step(run, x, args.train)
        print((resident_kib("VmHWM") - before) / 1024)
        return
    for size in args.sizes:
        for name in (HOST, *(f"ratio {r:g}" for r in (0.0, *args.ratios))):
            command = [sys.executable, __file__, "--memory", "--only", name, "--sizes", str(size), "--arch", args.arch]
            command += ["--threads", str(args.threads), *(["--train"] if args.train else [])]
            command += ["--ratios", *map(str, args.ratios)]
            result = subprocess.run(command, capture_output=True, text=True, check=True)
            print(f"{size} x {size} {name:20} {float(result.stdout.split()[-1]):8.0f} MiB", flush=True)


def main() -> None:
    args = parse_args()
    torch.set_num_threads(args.threads)
    MMLogger.get_instance("benchmark", log_level="ERROR")
    report_memory(args) if args.memory else report_times(args)


if __name__ == "__main__":
    main()
