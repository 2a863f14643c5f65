"""A training that was killed goes on as if nothing had happened: same samples, same random numbers, same weights."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.dataset import BaseDataset
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from torch import Tensor, nn

from mmvit_plugins.engine import DamagedFileError, ReportingRunner
from mmvit_plugins.engine.resume_point import find_resume_point, read_training_state

SAMPLES, BATCH, ITERATIONS, EVERY = 10, 2, 13, 4
NUMBERS = itertools.count()


class NoisyNumbers(BaseDataset):
    """Ten samples; each draw adds noise out of all three global generators, as augmentations do."""

    METAINFO = dict(classes=("number",))

    def load_data_list(self) -> list[dict]:
        return [dict(number=number) for number in range(SAMPLES)]

    def prepare_data(self, idx: int) -> dict:
        noise = [random.random(), float(np.random.rand()), float(torch.rand(()))]
        return dict(inputs=np.array([float(idx), *noise], dtype=np.float32), number=idx)


class DropoutModel(BaseModel):
    """A linear layer behind batch norm and dropout: statistics to restore, and random numbers of the model's own."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.linear = nn.Linear(4, 1)
        nn.init.constant_(self.linear.weight, 0.1)
        nn.init.zeros_(self.linear.bias)

    def forward(self, inputs: Tensor, number: Tensor, mode: str = "loss") -> dict[str, Tensor]:
        x = torch.from_numpy(np.stack(list(inputs)))
        x = nn.functional.dropout(self.norm(x), 0.5, self.training)
        return dict(loss=(self.linear(x) - 1).square().mean())


class Record(Hook):
    """What each iteration saw; stops the training before the iteration ``stop_at``."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.stop_at = stop_at
        self.rows: dict[int, tuple] = {}

    def before_train_iter(self, runner, batch_idx, data_batch=None) -> None:
        if runner.iter == self.stop_at:
            raise KeyboardInterrupt

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None) -> None:
        noise = [tuple(x.tolist()) for x in data_batch["inputs"]]
        lr = runner.optim_wrapper.get_lr()["lr"][0]
        self.rows[runner.iter] = (list(map(int, data_batch["number"])), noise, lr, outputs["loss"].item())


def runner_for(
    work_dir: Path, name: str, by_epoch: bool = False, workers: int = 0, seed=3, **changes
) -> ReportingRunner:
    loop = dict(by_epoch=True, max_epochs=3) if by_epoch else dict(by_epoch=False, max_iters=ITERATIONS)
    sampler = dict(type="DefaultSampler" if by_epoch else "InfiniteSampler", shuffle=True)
    settings = dict(
        model=DropoutModel(),
        work_dir=str(work_dir),
        train_dataloader=dict(
            batch_size=BATCH, num_workers=workers, sampler=sampler, dataset=dict(type=NoisyNumbers, lazy_init=True)
        ),
        train_cfg=loop,
        optim_wrapper=dict(optimizer=dict(type="Adam", lr=0.05)),
        param_scheduler=[dict(type="LinearLR", start_factor=0.1, by_epoch=False, end=6)],
        default_hooks=dict(
            checkpoint=dict(type="CheckpointHook", by_epoch=by_epoch, interval=1 if by_epoch else EVERY)
        ),
        randomness=dict(seed=seed),
        log_level="ERROR",
        experiment_name=f"{name}_{next(NUMBERS)}",  # mmengine keeps loggers and message hubs by this name
    )
    return ReportingRunner(**(settings | changes))


def run(runner: ReportingRunner, stop_at: int | None = None) -> tuple[dict[int, tuple], dict[str, Tensor]]:
    """Train; returns what each iteration saw, and the weights."""
    record = Record(stop_at)
    runner.register_hook(record)
    stopped = False
    try:
        runner.train()
    except KeyboardInterrupt:
        stopped = True
    assert stopped == (stop_at is not None)
    # Workers that the garbage collector finds wait five seconds for a message that does not come.
    vars(runner.train_loop).pop("dataloader_iterator", None)
    return record.rows, {key: value.clone() for key, value in runner.model.state_dict().items()}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("by_epoch", [False, True], ids=["by_iter", "by_epoch"])
def test_an_interrupted_training_repeats_the_rest(by_epoch: bool, workers: int, tmp_path: Path) -> None:
    options = dict(by_epoch=by_epoch, workers=workers)
    straight, weights = run(runner_for(tmp_path / "straight", "whole", **options))
    stop_at, first = (13, 10) if by_epoch else (7, 4)  # in mid-training, and the last checkpoint before
    before, _ = run(runner_for(tmp_path / "cut", "cut", **options), stop_at)
    after, resumed_weights = run(runner_for(tmp_path / "cut", "resumed", resume=True, **options))
    assert list(before) == list(range(stop_at))
    assert list(after) == list(range(first, len(straight))), "not the iteration after the checkpoint"
    assert before | after == straight
    assert all(before[i] == after[i] for i in range(first, stop_at)), "the repeated iterations differ"
    assert all(torch.equal(weights[key], resumed_weights[key]) for key in weights)
    # The comparison means something: noise, dropout and rate differ from one iteration to the next.
    assert len({row[1][0][1] for row in straight.values()}) == len(straight)
    assert len({row[2] for row in straight.values()}) >= 5


def test_each_epoch_draws_every_sample_once_and_in_another_order(tmp_path: Path) -> None:
    rows, _ = run(runner_for(tmp_path, "epochs", by_epoch=True))
    drawn = [number for row in rows.values() for number in row[0]]
    epochs = [drawn[start : start + SAMPLES] for start in range(0, len(drawn), SAMPLES)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(SAMPLES))] * 3
    assert epochs[0] != epochs[1]


def test_workers_do_not_change_the_samples(tmp_path: Path) -> None:
    alone, _ = run(runner_for(tmp_path / "0", "alone", workers=0))
    helped, _ = run(runner_for(tmp_path / "2", "helped", workers=2))
    assert alone == helped


def test_another_seed_draws_otherwise(tmp_path: Path) -> None:
    one, _ = run(runner_for(tmp_path / "1", "one", seed=1))
    two, _ = run(runner_for(tmp_path / "2", "two", seed=2))
    assert [row[0] for row in one.values()] != [row[0] for row in two.values()]
    assert one[0][1][0][1:] != two[0][1][0][1:]


def test_without_a_seed_in_the_config_the_order_goes_on_too(tmp_path: Path) -> None:
    first = runner_for(tmp_path / "cut", "cut", seed=None)
    before, _ = run(first, stop_at=7)
    second = runner_for(tmp_path / "cut", "resumed", seed=None, resume=True)
    after, _ = run(second)
    straight, _ = run(runner_for(tmp_path / "straight", "straight", seed=first.seed))
    assert before | after == straight


def damage(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def test_a_damaged_last_checkpoint_is_passed_over_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    straight, weights = run(runner_for(tmp_path / "straight", "straight"))
    run(runner_for(tmp_path / "cut", "cut"), stop_at=10)
    damage(tmp_path / "cut" / "iter_8.pth")
    said: list[str] = []
    assert find_resume_point(tmp_path / "cut", said.append) == str(tmp_path / "cut" / "iter_4.pth")
    assert str(tmp_path / "cut" / "iter_8.pth") in said[0] and "iter_4.pth instead" in said[0]
    after, resumed_weights = run(runner_for(tmp_path / "cut", "resumed", resume=True))
    assert list(after) == list(range(4, ITERATIONS))
    assert all(torch.equal(weights[key], resumed_weights[key]) for key in weights)


def test_a_checkpoint_cut_off_anywhere_is_named(tmp_path: Path) -> None:
    """PyTorch fails in different ways, depending on what is left and on the size of the file."""
    for extra in (0, 200_000):
        path = tmp_path / f"iter_{extra}.pth"
        torch.save(dict(meta=dict(iter=3), state_dict=dict(x=torch.arange(extra))), path)
        assert read_training_state(path)["meta"]["iter"] == 3
        whole = path.read_bytes()
        for left in (0, 1, 10, 100, len(whole) // 3, len(whole) // 2, len(whole) - 100, len(whole) - 1):
            path.write_bytes(whole[:left])
            with pytest.raises(DamagedFileError, match=rf"cannot read checkpoint {path}.*\({left} bytes"):
                read_training_state(path)


def test_checkpoints_that_are_all_damaged_are_all_named(tmp_path: Path) -> None:
    run(runner_for(tmp_path, "cut"), stop_at=10)
    for name in ("iter_4.pth", "iter_8.pth"):
        damage(tmp_path / name)
    with pytest.raises(DamagedFileError, match=r"(?s)iter_8\.pth.*iter_4\.pth"):
        runner_for(tmp_path, "resumed", resume=True).train()


@pytest.mark.parametrize("pointer", ["", "/gone/iter_8.pth", None], ids=["cut off", "moved folder", "missing"])
def test_the_pointer_to_the_last_checkpoint_may_be_unusable(pointer: str | None, tmp_path: Path) -> None:
    run(runner_for(tmp_path, "cut"), stop_at=10)
    (tmp_path / "last_checkpoint").unlink()
    if pointer is not None:
        (tmp_path / "last_checkpoint").write_text(pointer)
    assert find_resume_point(tmp_path, pytest.fail) == str(tmp_path / "iter_8.pth")


def test_later_checkpoints_of_an_older_training_are_left_alone(tmp_path: Path) -> None:
    run(runner_for(tmp_path, "cut"), stop_at=10)
    (tmp_path / "iter_4000.pth").write_bytes((tmp_path / "iter_4.pth").read_bytes())
    damage(tmp_path / "iter_8.pth")
    assert find_resume_point(tmp_path, lambda said: None) == str(tmp_path / "iter_4.pth")


def test_nothing_to_resume_starts_from_the_beginning(tmp_path: Path) -> None:
    rows, _ = run(runner_for(tmp_path, "first", resume=True))
    assert list(rows) == list(range(ITERATIONS))


def test_a_kill_while_saving_leaves_no_half_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mmengine.fileio.backends import LocalBackend

    put = LocalBackend.put

    def put_half(self, obj: bytes, filepath: str) -> None:
        put(self, obj[: len(obj) // 2], filepath)
        if "iter_8" in str(filepath):
            raise KeyboardInterrupt
        put(self, obj, filepath)

    monkeypatch.setattr(LocalBackend, "put", put_half)
    with pytest.raises(KeyboardInterrupt):
        runner_for(tmp_path, "cut").train()
    assert sorted(path.name for path in tmp_path.glob("*.pth")) == ["iter_4.pth"]
    assert find_resume_point(tmp_path, pytest.fail) == str(tmp_path / "iter_4.pth")


def test_weights_alone_cannot_be_resumed(tmp_path: Path) -> None:
    torch.save({"state_dict": DropoutModel().state_dict()}, tmp_path / "weights.pth")
    with pytest.raises(DamagedFileError, match=r"weights\.pth is no checkpoint of a training"):
        runner_for(tmp_path, "resumed", resume=True, load_from=str(tmp_path / "weights.pth")).train()
