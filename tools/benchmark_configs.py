"""Parameters, FLOPs and times of whole segmentors, beside each other.

    python tools/benchmark_configs.py configs/stvit/upernet_camvid.py configs/stvit/segformer_mit_b0_camvid.py \\
        --size 256 256 --batch 4 --test-size 360 480

Random images; a training step is preprocessing, forward, backward and the update. In each round every config
is timed in turn, so that ratios hold on a machine whose speed drifts; medians are printed. FLOPs are those of one image
at --test-size, counted as in tools/benchmark.py, fused attention included (2 FLOPs are one multiply-add).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path[0] = str(Path(__file__).resolve().parents[1])

from mmvit_plugins.benchmark import count_flops  # noqa: E402
from mmvit_plugins.cli.config_loading import load_config, replace_sync_batch_norm  # noqa: E402


def random_batch(batch: int, size: tuple[int, int], classes: int) -> dict[str, Any]:
    """Images and label maps as MMSegmentation's preprocessor takes them."""
    from mmengine.structures import PixelData
    from mmseg.structures import SegDataSample

    def sample() -> SegDataSample:
        meta = dict(img_shape=size, ori_shape=size, pad_shape=size)
        return SegDataSample(gt_sem_seg=PixelData(data=torch.randint(0, classes, (1, *size))), metainfo=meta)

    images = [torch.randint(0, 256, (3, *size), dtype=torch.uint8) for _ in range(batch)]
    return dict(inputs=images, data_samples=[sample() for _ in range(batch)])


class Candidate:
    """A segmentor with its optimiser.

    Args:
        path: config.
        train_batch: random training batch.
        test_batch: random batch of one image.
    """

    def __init__(self, path: str, train_batch: dict[str, Any], test_batch: dict[str, Any]) -> None:
        from mmengine.optim import build_optim_wrapper
        from mmengine.registry import MODELS, init_default_scope

        cfg = load_config(argparse.Namespace(config=path, cfg_options=[]))
        init_default_scope(cfg.default_scope)
        replace_sync_batch_norm(cfg.model)
        cfg.model.data_preprocessor.size = tuple(train_batch["inputs"][0].shape[1:])
        self.model = MODELS.build(cfg.model)
        self.model.init_weights()
        self.optim = build_optim_wrapper(self.model, cfg.optim_wrapper)
        self.name, self.train_batch, self.test_batch = Path(path).stem, train_batch, test_batch

    def train(self) -> None:
        """One training step."""
        self.model.train()
        self.model.train_step(self.train_batch, self.optim)

    def test(self) -> None:
        """One prediction."""
        self.model.eval()
        with torch.no_grad():
            self.model.test_step(self.test_batch)

    def flops(self) -> int:
        """FLOPs of one prediction."""
        return count_flops(self.test)


def seconds(call: Callable[[], None]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main() -> None:
    """Print one line for each config, and JSON with ``--out``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("configs", nargs="+")
    parser.add_argument(
        "--size", type=int, nargs=2, default=[256, 256], metavar=("H", "W"), help="of the training crop"
    )
    parser.add_argument("--batch", type=int, default=4, help="of the training step")
    parser.add_argument("--test-size", type=int, nargs=2, default=[360, 480], metavar=("H", "W"))
    parser.add_argument("--classes", type=int, default=11)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="write the results as JSON")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    train_batch = random_batch(args.batch, tuple(args.size), args.classes)
    test_batch = random_batch(1, tuple(args.test_size), args.classes)
    candidates = [Candidate(path, train_batch, test_batch) for path in args.configs]
    calls = {(c.name, kind): getattr(c, kind) for c in candidates for kind in ("train", "test")}
    times: dict[tuple[str, str], list[float]] = {key: [] for key in calls}
    for round_number in range(args.rounds + 1):
        for key, call in calls.items():
            taken = seconds(call)
            if round_number:  # the first round warms up
                times[key].append(taken)
    rows = [
        dict(
            config=c.name,
            parameters=sum(p.numel() for p in c.model.parameters()),
            gflop=round(c.flops() / 1e9, 2),
            train_ms=round(statistics.median(times[c.name, "train"]) * 1e3, 1),
            test_ms=round(statistics.median(times[c.name, "test"]) * 1e3, 1),
        )
        for c in candidates
    ]
    for row in rows:
        print("  ".join(f"{key} {value}" for key, value in row.items()))
    if args.out:
        settings = dict(torch=torch.__version__, **vars(args))
        args.out.write_text(json.dumps(dict(settings=settings, rows=rows), indent=2, default=str) + "\n")


if __name__ == "__main__":
    main()
