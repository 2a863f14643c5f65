"""FlatFormer's encoder against its golden outputs: the order of the tokens, their positions, and the map."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import torch

from mmvit_plugins.checkpoints import OfficialPretrained
from mmvit_plugins.models.token_reduction.equal_groups import ORDERS, EqualGroups, cut_into_groups
from mmvit_plugins.registry import MODELS

ATOL = 1e-4


def check(fill: ModuleType, path: Path, case_name: str, folder: Path) -> None:
    """``flatformer_encoder*``: everything is stated by the manifest, a case may state more."""
    variant = path.stem.removeprefix("flatformer_")
    if not variant.startswith("encoder"):
        raise ValueError(f"FlatFormer has published an encoder only, there is no {variant!r}")
    manifest = json.loads(path.read_text())
    case, expected = next((c, e) for c, e in fill.golden_cases(path.stem) if c["name"] == case_name)
    arguments = manifest["arguments"] | case.get("arguments", {})
    encoder = MODELS.build(dict(type="mmvit_plugins.FlatFormerEncoder", **arguments)).eval()
    torch.save(fill.official_state_dict(path.stem), folder / "official.pth")
    OfficialPretrained(str(folder / "official.pth"))(encoder)

    features = fill.golden_input(case["input"], f"{path.stem}/{case_name}")
    coors, size = expected["coords"], case["batch_size"]
    sample, y, x = coors[:, 0], coors[:, 2], coors[:, 3]
    counts = torch.bincount(sample, minlength=size).tolist()
    # Indices are equal, number by number.
    source, place, real = cut_into_groups(counts, arguments["group_size"], coors.device)
    got = dict(flat2win=source, win2flat=place)
    assert real.all()
    extent, window = tuple(arguments["sparse_shape"][:2]), tuple(arguments["window_shape"][:2])
    for (axis, shift), name in zip(ORDERS, ("x", "x_shift", "y", "y_shift"), strict=True):
        grouping = EqualGroups(arguments["group_size"], window, axis, shift)
        got[name] = (sample * grouping.num_keys(extent) + grouping.keys(x, y, extent)).argsort(stable=True)
        groups = grouping.associate_sparse(x, y, sample, extent, counts)
        assert torch.equal(groups.source[0], got[name][source])
    for name, wanted in expected.items():
        if name in got:
            assert torch.equal(got[name], wanted), name
    # Numbers are close.
    with torch.no_grad():
        values = dict(
            pe=encoder.positions(x, y),
            tokens=encoder.encode(features, x, y, sample, counts),
            canvas=encoder(features, coors, size),
        )
    for name, value in values.items():
        if name not in expected:
            continue
        assert list(value.shape) == case["shapes"][name]
        part = value.flatten()[:: case["steps"][name]]
        torch.testing.assert_close(part, expected[name], rtol=0, atol=ATOL, msg=lambda m, n=name: f"{n}: {m}")
        stats = case["stats"][name]
        assert abs(value.mean().item() - stats["mean"]) <= ATOL, name
        assert abs(value.std(correction=0).item() - stats["std"]) <= ATOL, name
        assert abs(value.abs().max().item() - stats["absmax"]) <= ATOL, name
    assert set(expected) <= {"coords"} | set(got) | set(values)
