"""Cost of token-reduction necks beside one Swin block at each level of the same maps.

    python tools/benchmark_neck.py --size 360 480                    # configs/token_reduction_neck/*upernet*
    python tools/benchmark_neck.py --size 512 1024 --configs upernet_ade20k.py

Batch 1, float32 on the CPU, inference, random maps.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from mmengine.config import Config
from mmpretrain.models.backbones.swin_transformer import SwinBlock
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT)

from mmvit_plugins.registry import MODELS  # noqa: E402

STRIDES = (4, 8, 16, 32)


def measure(call: Callable[[], object], rounds: int) -> tuple[float, float]:
    """GFLOP (two for each multiply-add) and milliseconds (median) of one call."""
    with torch.inference_mode():
        # The counter does not know the fused attention of CPUs.
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            call()
        call()
        times = []
        for _ in range(rounds):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
    return counter.get_total_flops() / 1e9, statistics.median(times) * 1e3


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configs", nargs="+", default=["upernet_ade20k.py", "clusters_upernet_ade20k.py"])
    parser.add_argument("--size", type=int, nargs=2, default=(360, 480), metavar=("H", "W"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    widths = None
    for name in args.configs:
        neck = Config.fromfile(ROOT / "configs" / "token_reduction_neck" / name).model.neck
        neck = neck[0] if isinstance(neck, list) else neck
        if list(neck.in_channels) != widths:
            widths = list(neck.in_channels)
            maps = tuple(
                torch.rand(1, c, -(-args.size[0] // s), -(-args.size[1] // s)).to(memory_format=torch.channels_last)
                for c, s in zip(widths, STRIDES[-len(widths) :], strict=True)
            )
            for x in maps:
                block = SwinBlock(
                    x.shape[1], num_heads=max(1, x.shape[1] // 32), window_size=7, pad_small_map=True
                ).eval()
                tokens, grid = x.flatten(2).transpose(1, 2), tuple(x.shape[2:])
                flops, ms = measure(lambda b=block, t=tokens, g=grid: b(t, g), args.rounds)
                what = f"Swin block, {x.shape[1]} channels, {x.shape[2]} x {x.shape[3]}"
                print(f"{what:45s} {flops:8.3f} GFLOP {ms:8.1f} ms", flush=True)
        model = MODELS.build(neck).eval()
        flops, ms = measure(lambda m=model, x=maps: m(x), args.rounds)
        print(f"{name:45s} {flops:8.3f} GFLOP {ms:8.1f} ms", flush=True)


if __name__ == "__main__":
    main()
