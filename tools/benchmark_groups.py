"""Cost of one FlatFormer layer against the number of tokens, beside windows padded to equal size.

    python tools/benchmark_groups.py --plot docs/images/flatformer_cost.png

Tokens are clustered places of a square grid of which 29 % are taken, 468 x 468 for 64000 tokens: as pillars of a
lidar are, dense near the sensor and on objects. Both layers have the same weights, 128 channels and 8 heads; grouping
is timed with them. Equal-size groups: 144 tokens, in the order of windows of 13 x 13. Padded windows: every window
that holds a token is filled up to the number of tokens in the fullest one by places which nobody attends to. In each
round both are timed in turn; medians are printed. Needs matplotlib for the plot.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

sys.path[0] = str(Path(__file__).resolve().parents[1])

from mmvit_plugins.models.layers import GroupTransformerLayer  # noqa: E402
from mmvit_plugins.models.token_reduction import EqualGroups, SelectionMap  # noqa: E402

WINDOW, GROUP, DIM, HEADS, TAKEN = 13, 144, 128, 8, 64000 / 468**2


def clustered_places(count: int, seed: int = 0) -> tuple[Tensor, int]:
    """(count, 2) different places x, y, half in clusters, half thinning out from the middle; and the grid's side."""
    side = round((count / TAKEN) ** 0.5)
    generator = torch.Generator().manual_seed(seed)
    clusters = max(1, count // 1000)
    centres = torch.rand(clusters, 2, generator=generator) * side
    chosen: Tensor = torch.empty(0, dtype=torch.long)
    while len(chosen) < count:
        near = centres[torch.randint(clusters, (count,), generator=generator)]
        near = near + 9 * torch.randn(count, 2, generator=generator)
        wide = side / 2 + side / 5 * torch.randn(count, 2, generator=generator)
        drawn = torch.cat([near, wide]).long()
        drawn = drawn[((drawn >= 0) & (drawn < side)).all(1)]
        chosen = torch.unique(torch.cat([chosen, drawn[:, 1] * side + drawn[:, 0]]))
        chosen = chosen[torch.randperm(len(chosen), generator=generator)]
    chosen = chosen[:count]
    return torch.stack([chosen % side, chosen // side], 1), side


def equal_groups(layer: GroupTransformerLayer, x: Tensor, pos: Tensor, places: Tensor, side: int) -> Tensor:
    """One layer in equal-size groups, sorting included."""
    sample = torch.zeros(len(places), dtype=torch.long)
    grouping = EqualGroups(GROUP, WINDOW)
    groups = grouping.associate_sparse(places[:, 0], places[:, 1], sample, (side, side), [len(places)])
    return layer(x, groups.reduce(pos), groups)


def windows_of(places: Tensor) -> tuple[Tensor, int, int]:
    """Window of each place, the number of windows, and how many places the fullest holds."""
    cell = places // WINDOW
    _, window, members = torch.unique(cell[:, 1] * 10000 + cell[:, 0], return_inverse=True, return_counts=True)
    return window, len(members), int(members.max())


def padded_windows(layer: GroupTransformerLayer, x: Tensor, pos: Tensor, places: Tensor) -> Tensor:
    """One layer in windows, all padded to the size of the fullest."""
    window, num, size = windows_of(places)
    order = window.argsort()
    first = torch.searchsorted(window[order], torch.arange(num))
    place = torch.empty_like(order)
    place[order] = window[order] * size + torch.arange(len(order)) - first[window[order]]
    source = torch.zeros(num * size, dtype=torch.long).index_copy(0, place, torch.arange(len(place)))
    real = torch.zeros(num * size, dtype=torch.bool).index_fill(0, place, True)
    ones = torch.ones(1, len(place), 1)
    windows = SelectionMap(place.view(1, -1, 1), ones, num * size, source.unsqueeze(0), True, real.unsqueeze(0))
    layer.group_size = size
    return layer(x, windows.reduce(pos), windows)


def measure(count: int, rounds: int) -> dict[str, float]:
    """Median milliseconds of both, and how many places the padded windows have for each token."""
    places, side = clustered_places(count)
    x, pos = torch.randn(1, count, DIM), torch.randn(1, count, DIM)
    torch.manual_seed(0)
    groups, windows = (GroupTransformerLayer(DIM, HEADS, GROUP).eval() for _ in range(2))
    windows.load_state_dict(groups.state_dict())
    runs: dict[str, Callable[[], Tensor]] = {
        "groups": lambda: equal_groups(groups, x, pos, places, side),
        "windows": lambda: padded_windows(windows, x, pos, places),
    }
    times: dict[str, list[float]] = {name: [] for name in runs}
    with torch.no_grad():
        for i in range(rounds + 1):
            for name, run in runs.items():
                start = time.perf_counter()
                run()
                if i:  # the first is a warm-up
                    times[name].append(1e3 * (time.perf_counter() - start))
    _, num, size = windows_of(places)
    return {name: statistics.median(t) for name, t in times.items()} | {"padding": num * size / count}


def plot(rows: dict[int, dict[str, float]], path: str) -> None:
    """Time against tokens, both logarithmic, with a line of slope one."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    counts = sorted(rows)
    figure, axes = plt.subplots(figsize=(6.4, 4.2))
    for name, label, style in (
        ("windows", f"windows of {WINDOW} x {WINDOW}, padded", "s-"),
        ("groups", f"groups of {GROUP} (FlatFormer)", "o-"),
    ):
        axes.loglog(counts, [rows[n][name] for n in counts], style, label=label)
    last = counts[-1]
    axes.loglog(counts, [rows[last]["groups"] * n / last for n in counts], "k:", label="proportional to the tokens")
    axes.set_xticks(counts, [f"{n // 1000}k" for n in counts])
    axes.minorticks_off()
    axes.set(xlabel="tokens (clustered)", ylabel="one layer, ms", title="128 channels, 8 heads, float32")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Print a table, and draw it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", nargs="+", type=int, default=[1000 * 2**i for i in range(7)], metavar="N")
    parser.add_argument("--rounds", type=int, default=3, help="timed rounds (%(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="(%(default)s)")
    parser.add_argument("--plot", metavar="FILE", help="draw into this file")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    rows = {}
    print(
        "| tokens | groups | padded windows | ratio | places for each token in padded windows |\n|---|---|---|---|---|"
    )
    for count in args.tokens:
        row = rows[count] = measure(count, args.rounds)
        ratio = row["windows"] / row["groups"]
        print(f"| {count} | {row['groups']:.1f} ms | {row['windows']:.1f} ms | {ratio:.2f} | {row['padding']:.2f} |")
    if args.plot:
        plot(rows, args.plot)


if __name__ == "__main__":
    main()
