#!/usr/bin/env python
"""How much faster merging makes a plain ViT: the same model with different r, timed in turn.

Both sides use the fused attention; r = 0 runs the inner model's own blocks. Random weights: the cost of merging does
not depend on what merges.

    python tools/benchmark_tome.py --arch deit_small --size 224 --batch 8 --threads 2
"""

from __future__ import annotations

import argparse
import ast
import statistics
import time

import torch
from torch import nn


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", default="deit_small")
    parser.add_argument("--size", type=int, nargs="+", default=[224], help="side of the square images, in pixels")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--r", nargs="+", default=["0", "13", "(13,-1)"], help="the first is the yardstick")
    parser.add_argument("--out-type", default="cls_token", choices=("cls_token", "featmap", "avg_featmap", "raw"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=12, help="time to measure for each size")
    return parser.parse_args()


def build(arch: str, r: str, out_type: str) -> nn.Module:
    """A model in eval mode whose weights make tokens differ."""
    from mmvit_plugins.models import ToMe

    torch.manual_seed(0)
    model = ToMe(arch=arch, r=ast.literal_eval(r), out_type=out_type)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
    model.eval()
    return model


def main() -> None:
    """Print median and smallest time of each setting, and the speed-up by both."""
    args = parse_args()
    torch.set_num_threads(args.threads)
    models = {r: build(args.arch, r, args.out_type) for r in args.r}
    print(
        f"{args.arch}, batch {args.batch}, {args.threads} threads, float32, {args.out_type}, torch {torch.__version__}"
    )
    for size in args.size:
        x, times = torch.randn(args.batch, 3, size, size), {r: [] for r in args.r}
        with torch.inference_mode():
            for model in models.values():
                model(x)
            end = time.monotonic() + args.seconds
            while time.monotonic() < end or len(times[args.r[-1]]) < 3:
                for r, model in models.items():
                    start = time.perf_counter()
                    model(x)
                    times[r].append(1e3 * (time.perf_counter() - start))
        first = times[args.r[0]]
        for r, values in times.items():
            median, least = statistics.median(values), min(values)
            gain = f"speed-up {statistics.median(first) / median:.2f} (of the minima {min(first) / least:.2f})"
            print(f"{size:5d} px  r={r:8s} median {median:7.1f} ms  min {least:7.1f} ms  {gain}, {len(values)} runs")


if __name__ == "__main__":
    main()
