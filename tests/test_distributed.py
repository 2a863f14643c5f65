"""Two gloo processes give what one process gives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from backbone_cases import backbone_cases, image
from hosts import require_host
from test_backbone_training import OUTPUTS, gradients, loss_of
from test_resume import run, runner_for
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from mmvit_plugins.registry import MODELS

PROCESSES = 2
VARIANTS = [(find, with_cp) for find in (False, True) for with_cp in (False, True)]
CASES = {str(case): case for case in backbone_cases()}


def shared_batch() -> Tensor:
    return image(4, 33, 47)


def gradients_in_parallel(rank: int, name: str, find: bool, changes: dict) -> dict[str, Tensor]:
    """Gradients of the second step: DDP reports parameters that the first one left unused when the second begins."""
    # With batch statistics the halves of a batch would differ from the whole.
    model = CASES[name].build(norm_eval=True, **changes).train()
    parallel = DistributedDataParallel(model, find_unused_parameters=find)
    for _ in range(2):
        model.zero_grad(set_to_none=True)
        loss_of(parallel(shared_batch().chunk(PROCESSES)[rank])).backward()
    return {key: p.grad.clone() for key, p in model.named_parameters()}


def resumed_run(folder: Path) -> dict[str, Any]:
    """What this process saw in a whole training, and in one that stopped before iteration 7 and was resumed at 4."""
    wrapper = dict(model_wrapper_cfg=dict(type="MMDistributedDataParallel", device_ids=None))
    options = dict(launcher="pytorch", cfg=wrapper)
    straight, weights = run(runner_for(folder / "straight", "straight", **options))
    before, _ = run(runner_for(folder / "cut", "cut", **options), stop_at=7)
    after, resumed = run(runner_for(folder / "cut", "resumed", resume=True, **options))
    return dict(straight=straight, before=before, after=after, weights=weights, resumed=resumed)


def shaping_case() -> tuple[Tensor, nn.Linear, nn.Module]:
    """Inputs of 6 images, a gate, and its loss."""
    torch.manual_seed(0)
    loss = MODELS.build(dict(type="mmvit_plugins.BatchShapingLoss", target=0.3, grid=(2, 2)))
    return torch.randn(6, 5), nn.Linear(5, 4), loss


def shaping_gradients(rank: int | None) -> dict[str, Tensor]:
    """Gradients of gate and priors: of a process of two through DDP, or (rank None) of one with the whole batch."""
    x, gate, loss = shaping_case()
    both = nn.ModuleList([gate, loss])
    if rank is not None:
        x = x.chunk(PROCESSES)[rank]
    sum(loss(gate(x).sigmoid(), (2, 2)).values()).backward()
    grads = {name: p.grad.clone() for name, p in both.named_parameters()}
    if rank is not None:  # what DDP does
        for grad in grads.values():
            dist.all_reduce(grad)
            grad /= PROCESSES
        uneven = gate(torch.randn(2 + rank, 5)).sigmoid()
        assert all(value.isfinite() for value in loss(uneven, (2, 2)).values())
    return grads


def work(rank: int, folder: Path) -> None:
    """One of the processes: everything that needs two is done in one start, since each start imports PyTorch."""
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(PROCESSES))
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=PROCESSES)
    results: dict[str, Any] = {}
    jobs = {("ddp", name, *variant): dict(with_cp=variant[1]) for name in CASES for variant in VARIANTS}
    jobs |= {("outputs", name, False, given): dict(out_indices=given) for name in CASES for given in OUTPUTS}
    for job, changes in jobs.items():
        try:
            results[str(job)] = gradients_in_parallel(rank, job[1], job[2], changes)
        except RuntimeError:
            results[str(job)] = traceback.format_exc()
    results["shaping"] = shaping_gradients(rank)
    results["resume"] = resumed_run(folder)
    torch.save(results, folder / f"rank{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of the two processes found."""
    folder = tmp_path_factory.mktemp("processes")
    mp.spawn(work, args=(folder,), nprocs=PROCESSES)
    return [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in range(PROCESSES)]


def check(results: list[dict], job: tuple, wanted: dict[str, Tensor]) -> None:
    for result in results:
        got = result[str(job)]
        assert isinstance(got, dict), got
        # What nearly cancels (a shift before a normalised similarity) is rounding of the larger gradients.
        floor = 1e-7 * max(grad.abs().max() for grad in wanted.values())
        for name, grad in wanted.items():
            error, scale = (got[name] - grad).abs().max(), grad.abs().max()
            assert error <= 1e-4 * scale + floor, f"{name}: {error:.1e} of {scale:.1e}"


@pytest.mark.parametrize("find, with_cp", VARIANTS, ids=lambda value: str(value))
@pytest.mark.parametrize("name", CASES)
def test_gradients_equal_those_of_one_process(results: list, name: str, find: bool, with_cp: bool) -> None:
    whole = CASES[name].build(norm_eval=True).train()
    check(results, ("ddp", name, find, with_cp), gradients(whole, shared_batch()))


@pytest.mark.parametrize("out_indices", OUTPUTS, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_no_parameter_is_unused_for_any_outputs(results: list, name: str, out_indices: tuple[int, ...]) -> None:
    whole = CASES[name].build(norm_eval=True, out_indices=out_indices).train()
    check(results, ("outputs", name, False, out_indices), gradients(whole, shared_batch()))


def test_batch_shaping_sees_the_batch_of_all_processes(results: list) -> None:
    wanted = shaping_gradients(None)
    for result in results:
        for name, grad in wanted.items():
            torch.testing.assert_close(result["shaping"][name], grad, rtol=1e-5, atol=1e-8)
    assert wanted["0.weight"].abs().max() > 1e-4


def test_a_resume_repeats_the_draws_of_every_process(results: list) -> None:
    for result in results:
        resume = result["resume"]
        assert list(resume["after"]) == list(range(4, len(resume["straight"])))
        assert resume["before"] | resume["after"] == resume["straight"]
        assert all(torch.equal(value, resume["resumed"][key]) for key, value in resume["weights"].items())
    # Only the running statistics could differ, which DDP leaves to each process.
    last = [result["resume"]["weights"] for result in results]
    assert all(torch.equal(value, last[1][key]) for key, value in last[0].items())
    first, second = (result["resume"]["straight"] for result in results)
    drawn = [[number for row in rows.values() for number in row[0]] for rows in (first, second)]
    assert sorted(drawn[0][:5] + drawn[1][:5]) == list(range(10)), "the processes share the samples of an epoch"
    assert all(first[i][1] != second[i][1] for i in first), "the processes draw the same noise"


TRAINING = """
_base_ = {base!r}
small_arch = dict(dims=(8, 16, 16, 24), depths=(1, 1, 1, 1), heads=(1, 2, 2, 3), cells=(4, 2, 1, 1))
small_arch.update(layer_scale=(0, 0, 0, 0))
model = dict(
    data_preprocessor=dict(size=(32, 48)),
    backbone=dict(_delete_=True, type="mmvit_plugins.STViT", arch=small_arch),
    decode_head=dict(in_channels=[8, 16, 16, 24], channels=8),
    auxiliary_head=dict(in_channels=16, channels=8),
)
train_dataloader = dict(batch_size=2, dataset=dict(num_scenes=8, size=(32, 48)))
val_dataloader = dict(batch_size=2, dataset=dict(num_scenes=5, size=(32, 48)))
test_dataloader = val_dataloader
train_cfg = dict(max_iters=2, val_interval=2)
default_hooks = dict(logger=dict(interval=1), checkpoint=dict(interval=2, save_best=None))
"""


# Half of the training samples have labels of one task only: a process may have a batch without those of the others.
MULTI_TASK = """
_base_ = {base!r}
small_arch = dict(dims=(8, 16, 16, 24), depths=(1, 1, 1, 1), heads=(1, 2, 2, 3), cells=(4, 2, 1, 1))
small_arch.update(layer_scale=(0, 0, 0, 0))
model = dict(
    backbone=dict(_delete_=True, type="mmvit_plugins.STViT", arch=small_arch, out_indices=(0, 1, 2, 3)),
    head=dict(in_channels=[8, 16, 16, 24], channels=8),
)
scenes = dict(type="mmvit_plugins.ScenesMultiTaskDataset", split="train", num_scenes=8, size=(32, 48))
pack = dict(type="mmvit_plugins.PackDenseTaskInputs")
whole = [dict(type="mmvit_plugins.LoadScene", layers={{{{_base_.layers}}}}), pack]
depth = [dict(type="mmvit_plugins.LoadScene", layers=["depth"]), pack]
train_dataloader = dict(
    batch_size=2,
    dataset=dict(
        _delete_=True, type="ConcatDataset", datasets=[dict(scenes, pipeline=whole), dict(scenes, pipeline=depth)]
    ),
)
val_dataloader = dict(batch_size=2, dataset=dict(num_scenes=5, size=(32, 48)))
test_dataloader = val_dataloader
train_cfg = dict(max_iters=6, val_interval=6)
default_hooks = dict(logger=dict(interval=1), checkpoint=dict(interval=6, save_best=None))
"""


@pytest.mark.parametrize(
    "text, base, keys",
    [
        (TRAINING, "stvit/upernet_scenes.py", ("aAcc", "mIoU", "mAcc")),
        (
            MULTI_TASK,
            "multitask/stvit_scenes.py",
            (
                "semseg/mIoU",
                "depth/rmse",
                "depth/rmse_per_image",
                "normals/mean",
                "boundary/odsF",
                "saliency/maxF_survey",
            ),
        ),
    ],
    ids=["segmentation", "multitask"],
)
def test_a_training_by_two_processes_validates_as_one_does(
    root: Path, tmp_path: Path, text: str, base: str, keys: tuple[str, ...]
) -> None:
    """Five scenes in two processes: one of them is padded, and must not count twice."""
    require_host("mmseg")
    from mmvit_plugins.cli import test as test_tool

    (tmp_path / "tiny.py").write_text(text.format(base=str(root / "configs" / base)))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={PROCESSES}"]
    command += [str(root / "tools" / "train.py"), "tiny.py", "--launcher", "pytorch", "--work-dir", "work"]
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (log,) = (tmp_path / "work").glob("*/vis_data/scalars.json")
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    (checkpoint,) = (tmp_path / "work").glob("iter_*.pth")
    assert [row["iter"] for row in rows if "loss" in row] == [*range(1, int(checkpoint.stem[5:]) + 1)]
    (metrics,) = [row for row in rows if keys[0] in row]
    options = ["--work-dir", str(tmp_path / "alone"), "--out", str(tmp_path / "alone.json")]
    assert test_tool.main([str(tmp_path / "tiny.py"), str(checkpoint), *options]) == 0
    alone = json.loads((tmp_path / "alone.json").read_text())["metrics"]
    for key in keys:
        assert metrics[key] == pytest.approx(alone[key], rel=1e-3, abs=0.02), key
