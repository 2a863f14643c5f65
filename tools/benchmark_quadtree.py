"""Speed of the quadtree without a loop over splits, beside the loop, and of the whole tokenisation.

    python tools/benchmark_quadtree.py
    python tools/benchmark_quadtree.py --cases 256,196,8 --rounds 20

A case is SIDE,TOKENS,BATCH: square images of SIDE pixels, patches of 64, 32 and 16 pixels. ``heap``: one image after
the other with a heap (tests/reference/quadtree.py), all of it in Python; ``batched``: one argmax over the batch for
each split, in tensors; ``ours``: :func:`build_quadtree`, which also gives boxes and the map; all from the same scores.
``scores`` is the pixel-blur scorer, ``whole tokenisation`` all of it with resize and gather. Medians.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT)
sys.path.insert(1, str(ROOT / "tests"))

from reference.quadtree import best_first, best_first_batched  # noqa: E402

from mmvit_plugins.models.backbones.quadformer import QuadtreeTokenizer  # noqa: E402
from mmvit_plugins.models.token_reduction import build_quadtree  # noqa: E402


def median_ms(call: Callable[[], object], rounds: int) -> float:
    """Median milliseconds of a call, after one that does not count."""
    call()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=["256,196,8", "1024,1024,1"], metavar="SIDE,TOKENS,BATCH")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    for case in args.cases:
        side, count, batch = (int(n) for n in case.split(","))
        x = torch.randn(batch, 3, side, side)
        tokenizer = QuadtreeTokenizer(16, 64, count, dict(type="mmvit_plugins.PixelBlurScorer"))
        grid, scores = tokenizer.grid(x), tokenizer.scorer(x, tokenizer.sizes, 16)
        arrays = [[s[i].numpy() for s in scores] for i in range(batch)]
        calls = {
            "heap": lambda a=arrays, g=grid, n=count: [best_first(s, g, n) for s in a],
            "batched": lambda s=scores, g=grid, n=count: best_first_batched(s, g, n),
            "ours": lambda s=scores, g=grid, n=count: build_quadtree(s, g, n),
            "scores": lambda t=tokenizer, x=x: t.scorer(x, t.sizes, 16),
            "whole tokenisation": lambda t=tokenizer, x=x: t(x),
        }
        times = {name: median_ms(call, args.rounds) for name, call in calls.items()}
        print(f"{side} px, L = {count}, batch {batch}, {args.threads} threads")
        for name, value in times.items():
            ratio = f"  {value / times['ours']:6.1f} x ours" if name in ("heap", "batched") else ""
            print(f"  {name:20s} {value:8.2f} ms{ratio}")


if __name__ == "__main__":
    main()
