"""Cost of token-reduction necks beside one Swin block at each level of the same maps.

    python tools/benchmark_neck.py --size 360 480                    # the ADE20K configs: widths of STViT-S
    python tools/benchmark_neck.py --size 720 960 --configs upernet_camvid.py coarse_upernet_camvid.py
    python tools/benchmark_neck.py --size 360 480 --rounds 0         # FLOPs only

Batch 1, float32 on the CPU, inference, random maps. All calls are timed in turn; medians. Attention is counted, fused
or not; one multiply-add is two FLOPs. With --out the rows are written as JSON too.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from mmengine.config import Config
from mmpretrain.models.backbones.swin_transformer import SwinBlock
from torch import Tensor

ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT)

from mmvit_plugins.benchmark import count_flops, interleaved_seconds  # noqa: E402
from mmvit_plugins.registry import MODELS  # noqa: E402

STRIDES = (4, 8, 16, 32)
NAMES = ("upernet_ade20k.py", "coarse_upernet_ade20k.py", "clusters_upernet_ade20k.py")


def random_maps(widths: Sequence[int], size: Sequence[int]) -> tuple[Tensor, ...]:
    """Maps (1, C, H / s, W / s), rounded up, at the last strides of 4, 8, 16, 32."""
    return tuple(
        torch.rand(1, c, -(-size[0] // s), -(-size[1] // s)).to(memory_format=torch.channels_last)
        for c, s in zip(widths, STRIDES[-len(widths) :], strict=True)
    )


def swin_blocks(maps: Sequence[Tensor]) -> dict[str, Callable[[], object]]:
    """One block of MMPretrain's Swin (window 7) on each map."""
    calls: dict[str, Callable[[], object]] = {}
    for x in maps:
        block = SwinBlock(x.shape[1], num_heads=max(1, x.shape[1] // 32), window_size=7, pad_small_map=True).eval()
        tokens, grid = x.flatten(2).transpose(1, 2), tuple(x.shape[2:])
        name = f"Swin block, {x.shape[1]} channels, {x.shape[2]} x {x.shape[3]}"
        calls[name] = lambda b=block, t=tokens, g=grid: b(t, g)
    return calls


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configs", nargs="+", default=NAMES, help="of configs/token_reduction_neck, of equal widths")
    parser.add_argument("--size", type=int, nargs=2, default=(360, 480), metavar=("H", "W"))
    parser.add_argument("--rounds", type=int, default=7, help="0: no times")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="JSON file")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    necks = {}
    for name in args.configs:
        neck = Config.fromfile(ROOT / "configs" / "token_reduction_neck" / name).model.neck
        necks[name] = neck[0] if isinstance(neck, list) else neck
    widths = {tuple(neck.in_channels) for neck in necks.values()}
    if len(widths) != 1:
        raise SystemExit(f"necks beside each other must take the same maps, got channels {sorted(widths)}")
    maps = random_maps(widths.pop(), args.size)
    calls = swin_blocks(maps)
    models = {name: MODELS.build(neck).eval() for name, neck in necks.items()}
    calls |= {name: lambda m=model: m(maps) for name, model in models.items()}
    with torch.inference_mode():
        flops = {name: count_flops(call) for name, call in calls.items()}
        times = interleaved_seconds(calls, args.rounds) if args.rounds else {}
    rows = []
    for name in calls:
        row = dict(name=name, size=list(args.size), gflop=flops[name] / 1e9)
        row |= dict(median_ms=statistics.median(times[name]) * 1e3, min_ms=min(times[name]) * 1e3) if times else {}
        rows.append(row)
        shown = f"{row['median_ms']:8.1f} ms (smallest {row['min_ms']:.1f})" if times else ""
        print(f"{name:45s} {row['gflop']:8.3f} GFLOP {shown}", flush=True)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
