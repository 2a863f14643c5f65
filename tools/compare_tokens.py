"""Train variants of a segmentation config one after the other, and print accuracy beside cost.

    python tools/compare_tokens.py configs/quadformer/fcn_scenes.py --iters 300 \\
        --variant q64 --variant q100 model.backbone.num_tokens=100 \\
        --variant u64 model.backbone.min_patch_size=16 model.backbone.max_patch_size=16

One process, one set of images, the same batches, optimiser and number of iterations for all; each variant is the config
with the changes behind its name, or another config's model. Cost is the FLOPs of a prediction for one image, attention
included (mean of 20 validation images, since tokens may depend on the image). With --out the rows and the weights are
written as they come, with a table and a picture of all rows in the folder (alone: only these two, from the rows there).
A Quadformer or MSViT also prints how many tokens it uses. Scenes of another size:

    python tools/compare_tokens.py configs/stvit/upernet_scenes.py --size 360 480 --crop 256 --batch 4 --scenes 300 \\
        --amp --iters 450 --variant none --variant neck configs/token_reduction_neck/upernet_scenes.py
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from mmengine.config import Config, DictAction
from mmengine.dataset import pseudo_collate
from mmengine.optim import build_optim_wrapper
from mmengine.registry import DATASETS, MODELS, init_default_scope
from torch import nn

sys.path[0] = str(Path(__file__).resolve().parent.parent)

from mmvit_plugins.benchmark import count_flops  # noqa: E402
from mmvit_plugins.evaluation.constant_predictor import constant_segmentor  # noqa: E402


def change(cfg: Config, changes: list[str]) -> Config:
    """A copy with KEY=VALUE changes, or another config with them."""
    cfg = Config(cfg.to_dict())
    options = {}
    for item in changes:
        if item.endswith(".py"):
            cfg = Config.fromfile(item)
            continue
        key, _, value = item.partition("=")
        options[key] = DictAction._parse_iterable(value)
    cfg.merge_from_dict(options)
    return cfg


def resize(cfg: Config, args: argparse.Namespace) -> Config:
    """The base config for the arguments: number and size of the scenes, crops for training, batch size.

    Raises:
        SystemExit: ``--size`` for images that are not rendered.
    """
    loaders = [cfg.train_dataloader, cfg.val_dataloader]
    scenes = "Scenes" in cfg.train_dataloader.dataset.type
    if args.size and not scenes:
        raise SystemExit(f"--size renders scenes of that size; {cfg.train_dataloader.dataset.type} reads files")
    if scenes:
        cfg.train_dataloader.dataset.num_scenes = args.scenes
        for loader in loaders if args.size else ():
            loader.dataset.size = tuple(args.size)
    if args.crop:
        crop = dict(type="RandomCrop", crop_size=(args.crop, args.crop), cat_max_ratio=0.75)
        pipeline = cfg.train_dataloader.dataset.pipeline
        cfg.train_dataloader.dataset.pipeline = [pipeline[0], crop, *pipeline[1:]]
    cfg.train_dataloader.batch_size = args.batch or cfg.train_dataloader.batch_size
    return cfg


def autocast(amp: bool) -> torch.autocast:
    """bfloat16 on a CPU, or nothing."""
    return torch.autocast("cpu", torch.bfloat16, enabled=amp)


def train(
    model: nn.Module, cfg: Config, dataset: Any, order: np.ndarray, iters: int, amp: bool = False
) -> dict[str, float]:
    """The config's optimiser with warm-up and polynomial fall over ``iters``; returns the last losses."""
    optimizer = build_optim_wrapper(model, cfg.optim_wrapper).optimizer
    warm = max(1, iters // 20)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda i: min((i + 1) / warm, max(0.0, 1 - i / iters) ** 0.9)
    )
    model.train()
    for i in range(iters):
        batch = pseudo_collate([dataset[int(j)] for j in order[i]])
        with autocast(amp):
            losses, logged = model.parse_losses(model(**model.data_preprocessor(batch, True), mode="loss"))
        optimizer.zero_grad()
        losses.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        schedule.step()
        if (i + 1) % 50 == 0:
            shown = "  ".join(f"{k} {float(v):.3f}" for k, v in logged.items() if "decode" not in k)
            print(f"    {i + 1:5d}  {shown}", flush=True)
    return {k: float(v) for k, v in logged.items()}


@torch.no_grad()
def evaluate(model: nn.Module, dataset: Any, classes: int, amp: bool = False) -> dict[str, float]:
    """mIoU and pixel accuracy in percent, FLOPs and tokens of an image."""
    model.eval()
    confusion = np.zeros((classes, classes), np.int64)
    for start in range(0, len(dataset), 10):
        batch = pseudo_collate([dataset[j] for j in range(start, min(start + 10, len(dataset)))])
        with autocast(amp):
            samples = model.test_step(batch)
        for sample in samples:
            true, got = (getattr(sample, k).data.numpy().ravel() for k in ("gt_sem_seg", "pred_sem_seg"))
            valid = true < classes
            confusion += np.bincount(true[valid] * classes + got[valid], minlength=classes**2).reshape(classes, -1)
    hit = np.diag(confusion)
    row = dict(
        mIoU=100 * float(np.mean(hit / (confusion.sum(0) + confusion.sum(1) - hit))),
        accuracy=100 * float(hit.sum() / confusion.sum()),
    )
    flops, tokens = [], []
    for j in range(min(20, len(dataset))):
        inputs = model.data_preprocessor(pseudo_collate([dataset[j]]), False)["inputs"]
        flops.append(count_flops(lambda x=inputs: model(x, mode="tensor")) / 1e6)
        if hasattr(model.backbone, "tokenize"):
            tokens.append(model.backbone.tokenize(inputs).tokens.shape[1])
    return row | dict(mflop=float(np.mean(flops)), tokens=float(np.mean(tokens)) if tokens else 0.0)


def report(folder: Path) -> None:
    """Write table.md and accuracy.png from rows.jsonl; names that differ in a number at the end make a line."""
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    head = ("name", "seed", "iters", "parameters", "mflop", "tokens", "mIoU", "accuracy")
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for row in rows:
        cells = (row.get(key, "") for key in head)
        lines.append(f"| {' | '.join(f'{x:.1f}' if isinstance(x, float) else str(x) for x in cells)} |")
    (folder / "table.md").write_text("\n".join(lines) + "\n")
    figure = Figure(figsize=(6.5, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    series: dict[str, list[tuple[float, float, str]]] = {}
    for row in rows:
        if "mflop" in row:
            series.setdefault(re.sub(r"\d+$", "", row["name"]), []).append((row["mflop"], row["mIoU"], row["name"]))
    for number, (label, points) in enumerate(series.items()):
        x, y, names = zip(*sorted(points), strict=True)
        axes.plot(x, y, "osD^v"[number % 5] + "-", label=label, markersize=5)
        for place in zip(x, y, names, strict=True):
            axes.annotate(place[2], place[:2], xytext=(4, 4), textcoords="offset points", fontsize=8)
    axes.set(xlabel="MFLOP of an image", ylabel="mIoU (%)")
    axes.margins(0.12)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(folder / "accuracy.png", dpi=110)
    print(f"wrote {folder / 'table.md'} and {folder / 'accuracy.png'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", nargs="?")
    parser.add_argument("--variant", nargs="+", action="append", default=[], metavar="NAME [CONFIG] [KEY=VALUE]")
    parser.add_argument("--iters", type=int, default=300)
    parser.add_argument("--scenes", type=int, default=800, help="training scenes")
    parser.add_argument("--size", type=int, nargs=2, metavar=("H", "W"), help="size of the scenes")
    parser.add_argument("--crop", type=int, help="train on random squares of this side")
    parser.add_argument("--batch", type=int, help="images of a training step; default: the config's")
    parser.add_argument("--seed", type=int, default=0, help="weights, batches and augmentation")
    parser.add_argument("--amp", action="store_true", help="bfloat16 autocast")
    parser.add_argument("--constant", action="store_true", help="also the class that is most frequent, everywhere")
    parser.add_argument("--out", help="folder for rows and weights")
    args = parser.parse_args()
    if args.out and not args.variant:
        return report(Path(args.out))
    if not args.config or not args.variant:
        parser.error("give a config and at least one --variant, or --out alone")
    torch.set_num_threads(1)
    base = Config.fromfile(args.config)
    init_default_scope(base.default_scope)
    base = resize(base, args)
    datasets = [DATASETS.build(base[f"{part}_dataloader"].dataset) for part in ("train", "val")]
    batch = base.train_dataloader.batch_size
    order = np.random.default_rng(args.seed).integers(0, len(datasets[0]), (args.iters, batch))
    rows = Path(args.out) / "rows.jsonl" if args.out else None

    def keep(row: dict[str, Any]) -> None:
        print(json.dumps(row), flush=True)
        if rows:
            rows.parent.mkdir(parents=True, exist_ok=True)
            with rows.open("a") as file:
                file.write(json.dumps(row) + "\n")

    if args.constant:
        label, metrics = constant_segmentor(*datasets, base.val_evaluator)
        keep(dict(name="constant", label=label) | {k: float(v) for k, v in metrics.items()})
    for name, *changes in args.variant:
        cfg = change(base, changes)
        torch.manual_seed(args.seed)
        np.random.seed(args.seed)
        random.seed(args.seed)
        model = MODELS.build(cfg.model)
        model.init_weights()
        start = time.process_time()
        print(f"{name}: {' '.join(changes)}", flush=True)
        last = train(model, cfg, datasets[0], order, args.iters, args.amp)
        row = dict(name=name, changes=changes, iters=args.iters, seed=args.seed)
        row |= dict(train_cpu_s=time.process_time() - start, parameters=sum(p.numel() for p in model.parameters()))
        row |= evaluate(model, datasets[1], cfg.model.decode_head.num_classes, args.amp)
        row |= {k: v for k, v in last.items() if "share" in k}
        keep(row)
        if rows:
            torch.save(dict(state_dict=model.state_dict()), rows.with_name(f"{name}_seed{args.seed}.pth"))
            report(rows.parent)


if __name__ == "__main__":
    main()
