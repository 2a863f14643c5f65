"""Token merging: the matching alone (tome_merge), and whole DeiTs (tome_<arch>)."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from mmvit_plugins.models.token_reduction import (
    TokenMap,
    bipartite_soft_matching,
    kth_bipartite_soft_matching,
    merge,
    merge_weighted,
)

__all__ = ["check_tome"]


def check_tome(fill: ModuleType, path: Path, case_name: str, folder: Path) -> None:
    """Compare one case: values within 1e-4 absolute, counts, sizes and sources equal."""
    manifest = json.loads(path.read_text())
    case, expected = next((c, e) for c, e in fill.golden_cases(path.stem) if c["name"] == case_name)
    name = f"{path.stem}/{case_name}"
    metric = fill.golden_input(case["input"], name)
    if path.stem == "tome_merge":
        outputs = run_merge(case, metric, fill.golden_input(case["x"], f"{name}/x"), partial(second_metric, fill, name))
    else:
        torch.save({"model": fill.official_state_dict(path.stem)}, folder / "official.pth")
        outputs = run_model(path.stem.removeprefix("tome_"), manifest, case, metric, str(folder / "official.pth"))
    assert set(case["outputs"]) <= set(outputs)
    for key in case["outputs"]:
        exact = not expected[key].is_floating_point() or key.startswith("size")
        got = outputs[key].to(expected[key].dtype)
        atol = 0 if exact else 1e-4
        torch.testing.assert_close(got, expected[key], rtol=0, atol=atol, msg=lambda m, n=key: f"{n}: {m}")


def second_metric(fill: ModuleType, name: str, count: int) -> Tensor:
    """The metric of the second merge, for so many tokens."""
    return fill.golden_input([3, count, 16], f"{name}/metric2")


def source_matrix(token_map: TokenMap) -> Tensor:
    """(B, M, N): 1 where the reduced token holds the token."""
    matrix = torch.zeros(token_map.index.shape[0], token_map.num, token_map.index.shape[1])
    return matrix.scatter(1, token_map.index.transpose(1, 2), token_map.weight.transpose(1, 2))


def run_merge(case: dict[str, Any], metric: Tensor, x: Tensor, second: Callable[[int], Tensor]) -> dict[str, Tensor]:
    """The outputs that the manifest describes."""
    if case["kind"] == "kth":
        first = kth_bipartite_soft_matching(metric, case["k"], remainder="drop")
        merged, size = merge_weighted(x, first)
        whole = x.shape[1] // case["k"] * case["k"]
        outputs = dict(merged=merged, size=size.unsqueeze(-1), source=source_matrix(first), mean=merge(x, first))
        return outputs | dict(unmerge=first.restore(merged)[:, :whole])
    tokens = dict(class_token=case["class_token"], distill_token=case["distill_token"])
    first = bipartite_soft_matching(metric, case["r"], **tokens)
    merged1, size1 = merge_weighted(x, first)
    coarser = bipartite_soft_matching(second(merged1.shape[1]), case["r"], **tokens)
    merged2, size2 = merge_weighted(merged1, coarser, size1)
    both = first.then(coarser)
    return dict(
        merged1=merged1,
        size1=size1.unsqueeze(-1),
        source1=source_matrix(first),
        merged2=merged2,
        size2=size2.unsqueeze(-1),
        source2=source_matrix(both),
        mean1=merge(x, first, "mean"),
        amax1=merge(x, first, "amax"),
        unmerge1=first.restore(merged1),
        unmerge2=both.restore(merged2),
    )


def run_model(
    variant: str, manifest: dict[str, Any], case: dict[str, Any], x: Tensor, checkpoint: str
) -> dict[str, Tensor]:
    """A classifier with the official weights; ``variant`` is the arch."""
    raise NotImplementedError
