"""Latencies, table and picture of ``tools/run_sparsity_chain.py``."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import UserError
from .resumable_runs import markdown_table

if TYPE_CHECKING:
    from .run_sparsity_chain import Model

__all__ = ["make_table", "measure", "rows_of", "write_report"]

LATENCIES = "final_latency.json"


def measure(models: Sequence[Model], out: Path, args: argparse.Namespace) -> None:
    """Time backbones and whole models side by side, count their GMAC, and write ``final_latency.json``.

    Each model with its trained weights, on validation scenes at its own resolution, one batch; the models take turns.
    Models that differ by the seed only are timed once.

    Args:
        models: those that are trained.
        out: folder of the chain.
        args: ``batch_size``, ``rounds``, ``cfg_options``.
    """
    import torch

    from mmvit_plugins.benchmark.counting import count_flops
    from mmvit_plugins.search.latency import trimmed_mean_seconds

    once = [model for model in models if "_seed" not in model.name]
    calls, rows = [], {}
    for model in once:
        network, images = _build(model, args)
        parts = (lambda n=network, x=images: n.backbone(x), lambda n=network, x=images: n(x, mode="tensor"))
        with torch.no_grad():
            backbone, whole = (count_flops(part) / 2e9 / len(images) for part in parts)
        ratios = [list(stage) for stage in network.backbone.pruning_ratios]
        rows[model.name] = dict(size=list(images.shape[2:]), ratios=ratios, backbone_gmac=backbone, model_gmac=whole)
        calls += parts
    with torch.no_grad():
        seconds = trimmed_mean_seconds(calls, "cpu", args.rounds, warmup=2)
    for number, row in enumerate(rows.values()):
        row["backbone_ms"], row["model_ms"] = (1e3 * t / args.batch_size for t in seconds[2 * number : 2 * number + 2])
    content = dict(batch_size=args.batch_size, threads=torch.get_num_threads(), rounds=args.rounds, models=rows)
    (out / LATENCIES).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print("\n".join(f"{n}: {r['backbone_ms']:.2f} ms, whole model {r['model_ms']:.2f} ms" for n, r in rows.items()))


def _build(model: Model, args: argparse.Namespace) -> tuple[Any, Any]:
    """A trained model in eval mode and a batch of validation scenes, prepared as for a test."""
    from mmengine.config import Config, DictAction
    from mmengine.dataset import pseudo_collate
    from mmengine.registry import DATASETS, MODELS, init_default_scope
    from mmengine.runner import load_checkpoint

    from .config_loading import find_config, replace_sync_batch_norm
    from .inference import quiet_hosts

    cfg = Config.fromfile(find_config(model.config))
    options = dict(item.split("=", 1) for item in args.cfg_options)
    cfg.merge_from_dict({key: DictAction._parse_iterable(value) for key, value in options.items()})
    cfg.val_dataloader.dataset.indices = args.batch_size
    replace_sync_batch_norm(cfg.model)
    with quiet_hosts(cfg.default_scope):
        init_default_scope(cfg.default_scope)
        network = MODELS.build(cfg.model)
        load_checkpoint(network, str(model.checkpoint), map_location="cpu", logger="silent")
        dataset = DATASETS.build(cfg.val_dataloader.dataset)
        samples = pseudo_collate([dataset[n] for n in range(args.batch_size)])
        network.eval()
        return network, network.data_preprocessor(samples, False)["inputs"]


def rows_of(models: Sequence[Model], out: Path) -> list[dict[str, Any]]:
    """One row for each model that is tested, seeds averaged: mIoU (and of each seed), cost, predicted latency.

    Raises:
        UserError: the latencies have not been measured, or nothing is tested.
    """
    latencies = _read(out / LATENCIES, "--only latency")
    table = _read(out / "latency.json", "--only table")
    rows: dict[str, dict[str, Any]] = {}
    for model in models:
        folder, name = model.checkpoint.parent, model.name.partition("_seed")[0]
        if not (folder / "test.json").is_file() or name not in latencies["models"]:
            continue
        row = rows.setdefault(name, dict(name=name, budget=model.budget, mIoUs=[], **latencies["models"][name]))
        row["mIoUs"].append(_miou(folder / "test.json"))
        if (folder / "before.json").is_file():
            row.setdefault("before", _miou(folder / "before.json"))
        if model.start is not None:
            row["predicted_ms"] = 1e3 * _predict(table, row["ratios"]) / latencies["batch_size"]
    if not rows:
        raise UserError(f"no model in {out} is both tested and timed")
    for row in rows.values():
        row["mIoU"] = math.fsum(row["mIoUs"]) / len(row["mIoUs"])
    return list(rows.values())


def _read(file: Path, how: str) -> dict[str, Any]:
    if not file.is_file():
        raise UserError(f"there is no {file}: make it with {how}")
    return json.loads(file.read_text(encoding="utf-8"))


def _miou(file: Path) -> float:
    return float(json.loads(file.read_text(encoding="utf-8"))["metrics"]["mIoU"])


def _predict(table: Mapping[str, Any], ratios: Sequence[Sequence[float]]) -> float:
    """Seconds of a batch by the table, linear between its ratios; one gene for each two blocks."""
    import numpy as np

    genes = [ratio for stage in ratios for ratio in stage[::2]]
    seconds = float(table["reference"])
    for ratio, change in zip(genes, table["changes"], strict=True):
        known = sorted((float(value), float(more)) for value, more in change.items())
        seconds += float(np.interp(ratio, *zip(*known, strict=True)))
    return seconds


def _ratios(stages: Sequence[Sequence[float]]) -> str:
    """``0.3 | 0 | 0.1, 0.2 | 0``: one number for each two blocks, or one for a stage where they are equal."""
    texts = []
    for stage in stages:
        pairs = list(stage[::2])
        texts.append(", ".join(f"{ratio:g}" for ratio in (pairs[:1] if len(set(pairs)) == 1 else pairs)))
    return " \\| ".join(texts)


def make_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Markdown: cost of an image beside the mIoU of the test scenes."""
    costs = ["backbone GMAC", "backbone ms", "predicted", "whole model ms"]
    lines = [["model", "input", "ratios", *costs, "not fine-tuned", "mIoU"]]
    for row in rows:
        spread = f" ({', '.join(f'{v:.2f}' for v in row['mIoUs'])})" if len(row["mIoUs"]) > 1 else ""
        lines.append(
            [
                row["name"],
                " x ".join(map(str, row["size"])),
                _ratios(row["ratios"]),
                f"{row['backbone_gmac']:.3f}",
                f"{row['backbone_ms']:.2f}",
                f"{row['predicted_ms']:.2f}" if "predicted_ms" in row else "",
                f"{row['model_ms']:.2f}",
                f"{row['before']:.2f}" if "before" in row else "",
                f"{row['mIoU']:.2f}{spread}",
            ]
        )
    return markdown_table(lines)


def write_report(models: Sequence[Model], out: Path, args: argparse.Namespace) -> None:
    """``table.md``, ``table.json`` and ``chain.png``."""
    rows = rows_of(models, out)
    error = _read(out / "latency.json", "--only table").get("error")
    predicted = [abs(row["predicted_ms"] / row["backbone_ms"] - 1) for row in rows if "predicted_ms" in row]
    text = make_table(rows)
    if error:
        text += f"\nLatency table: {100 * error['mean']:.1f} % off on average, {100 * error['largest']:.1f} % at most, "
        text += f"on {error['count']} candidates measured with it"
        text += f"; {100 * max(predicted):.1f} % at most in this table.\n" if predicted else ".\n"
    (out / "table.md").write_text(text, encoding="utf-8")
    (out / "table.json").write_text(json.dumps(dict(rows=rows, error=error), indent=1) + "\n", encoding="utf-8")
    _draw(rows, out / "chain.png")
    print(f"{text}\n{out / 'table.md'}\n{out / 'chain.png'}")


def _draw(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """mIoU against latency of the backbone (left) and of the whole model (right)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    kinds = {
        "dense": ("dense, full and lower resolution", "s-"),
        "unpruned": ("adapted, fine-tuned unpruned", "D"),
        "uniform": ("uniform ratios", "v--"),
        "random": ("random search", "^:"),
        "evolved": ("evolutionary search", "o-"),
    }
    figure = Figure(figsize=(10.5, 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, key, label in zip(
        figure.subplots(1, 2, sharey=True), ("backbone_ms", "model_ms"), ("backbone", "whole model"), strict=True
    ):
        for number, (kind, (title, style)) in enumerate(kinds.items()):
            chosen = sorted((row for row in rows if row["name"].startswith(kind)), key=lambda row: row[key])
            if not chosen:
                continue
            x, y = [row[key] for row in chosen], [row["mIoU"] for row in chosen]
            axes.plot(x, y, style, color=f"C{number}", label=title, markersize=6)
            spread = [(row[key], value) for row in chosen for value in row["mIoUs"] if len(row["mIoUs"]) > 1]
            if spread:
                axes.plot(*zip(*spread, strict=True), style[0], color=f"C{number}", alpha=0.35, markersize=3)
            for row in chosen if kind == "dense" else []:
                point = (row[key], row["mIoU"])
                axes.annotate(f"{row['size'][0]} px", point, (4, -12), textcoords="offset points", fontsize=8)
        axes.set(xlabel=f"{label}, ms an image")
        axes.grid(alpha=0.3)
    figure.axes[0].set(ylabel="mIoU of the test scenes, 256 x 256, %")
    figure.axes[0].legend(fontsize=8, loc="lower right")
    figure.savefig(path, dpi=130)
