"""What a benchmark prints."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from .records import compare_rows

__all__ = ["print_ratios", "print_table"]


def print_table(rows: Sequence[dict[str, Any]]) -> None:
    """Every row of a report."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="medians; MACs are multiply-adds, FLOPs = 2 MACs")
    for column in ("model", "size", "setting", "params (M)", "GMACs", "GFLOPs", "ms", "images/s", "peak MiB"):
        table.add_column(column, justify="left" if column in ("model", "setting") else "right")
    for row in rows:
        setting = [f"b{row['batch']}", row["dtype"], row["layout"], *["compiled"] * row["compiled"]]
        table.add_row(
            row["name"],
            f"{row['height']}x{row['width']}",
            " ".join([*setting, row["part"], row["mode"]]),
            f"{row['parameters'] / 1e6:.2f}",
            f"{row['macs'] / 1e9:.2f}",
            f"{row['flops'] / 1e9:.2f}",
            f"{row['latency_ms']:.1f}",
            f"{row['images_per_s']:.1f}",
            f"{row['peak_mib']:.0f}" if row.get("peak_mib") is not None else "-",
        )
    # A file or a pipe gets lines that are not folded.
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def print_ratios(rows: Sequence[dict[str, Any]], baseline: str) -> None:
    """Costs divided by those of ``baseline``; with a note where the two were not timed side by side."""
    if all(row["name"] != baseline for row in rows):
        print(f"no ratios to {baseline}: it was not measured")
        return
    print(f"ratios to {baseline} (below 1 is cheaper):")
    apart = False
    for row in compare_rows(rows, baseline):
        keys = ("parameters", "flops", "latency_ms", "peak_mib")
        ratios = "  ".join(f"{key} {row[key]:.2f}{'*' * _is_apart(row, key)}" for key in keys if key in row)
        apart = apart or _is_apart(row, "latency_ms")
        layout = f"{row['dtype']} {row['layout']} {row['part']} {row['mode']} b{row['batch']}"
        print(f"  {row['name']:<32} {row['height']}x{row['width']} {layout}: {ratios}")
    if apart:
        print(
            "* note: the two times are of different runs (--resume), between which the machine may have become faster "
            "or slower; measure both in one run to compare them"
        )


def _is_apart(row: dict[str, Any], key: str) -> bool:
    return key == "latency_ms" and key in row and not row["same_session"]
