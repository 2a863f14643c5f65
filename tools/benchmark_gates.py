"""Time of MSViT against the share of coarse patches: what dropping tokens saves.

    python tools/benchmark_gates.py
    python tools/benchmark_gates.py --arch base --size 384 --batch 4

A random gate sets the share, so every image of the batch has the same number of tokens. ``masked`` is the form that
training uses: all tokens of both scales, those not chosen masked. Inference, float32, medians; ``plain ViT`` is the
same model with all patches fine and no gate's work around it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from unittest import mock

import torch

sys.path[0] = str(Path(__file__).resolve().parent.parent)

from mmvit_plugins.models import MSViT, Quadformer  # noqa: E402


def median_ms(model: torch.nn.Module, x: torch.Tensor, rounds: int) -> float:
    """Median milliseconds of a forward pass, after one that does not count."""
    times = []
    with torch.no_grad():
        for _ in range(rounds + 1):
            start = time.perf_counter()
            model(x)
            times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", default="small")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.0, 0.25, 0.5, 0.75, 1.0])
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    x = torch.randn(args.batch, 3, args.size, args.size)
    common = dict(arch=args.arch, out_type="cls_token", out_indices=(3,))
    plain = Quadformer(min_patch_size=16, max_patch_size=16, num_tokens=1.0, **common).eval()
    print(f"MSViT {args.arch}, {args.size} px, batch {args.batch}, {args.threads} threads")
    print(f"  plain ViT            {median_ms(plain, x, args.rounds):8.1f} ms")
    for share in args.shares:
        gate = dict(type="mmvit_plugins.RandomGate", share=share)
        model = MSViT(img_size=args.size, gate=gate, **common).eval()
        tokens = model.tokenize(x).tokens.shape[1]
        line = f"  share {share:4.2f} {tokens:5d} tokens {median_ms(model, x, args.rounds):6.1f} ms"
        if share == 0.5:
            with mock.patch("torch.compiler.is_compiling", lambda: True):
                line += f"   masked {median_ms(model, x, args.rounds):6.1f} ms"
        print(line)


if __name__ == "__main__":
    main()
