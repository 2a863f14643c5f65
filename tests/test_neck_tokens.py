"""Token maps of TokenReductionNeck, and their pictures by tools/visualize_tokens.py --part neck."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from hosts import require_host
from test_token_reduction_neck import REDUCERS, reducer
from torch import Tensor, nn

from mmvit_plugins.cli import visualize_tokens
from mmvit_plugins.cli.visualize_tokens import Normalisation, draw_stages
from mmvit_plugins.models import STViT, TokenReductionNeck
from mmvit_plugins.visualization import draw_token_regions
from mmvit_plugins.visualization.neck_tokens import NeckTokens, list_necks

IMAGE = np.random.default_rng(0).integers(0, 256, (75, 101, 3), dtype=np.uint8)
GRIDS = [(19, 26), (10, 13), (5, 7), (3, 4)]
CHANNELS = (24, 48, 96, 128)


def backbone() -> STViT:
    torch.manual_seed(0)
    return STViT(arch="mini").eval()


def build(config: Any, **settings: Any) -> TokenReductionNeck:
    torch.manual_seed(1)
    return TokenReductionNeck(CHANNELS, config, embed_dims=16, num_heads=2, **settings).eval()


def features(model: nn.Module) -> tuple[Tensor, ...]:
    with torch.no_grad():
        return model(Normalisation()(IMAGE))


@pytest.mark.parametrize("name", sorted(REDUCERS))
def test_every_reducer_is_drawn_by_its_own_map_on_each_level(name: str) -> None:
    body = backbone()
    neck = build(reducer(name), output="maps" if REDUCERS[name].restorable else "tokens")
    drawn = list(draw_stages(NeckTokens(body, [neck]).eval(), IMAGE, Normalisation(), "distinct", 1))
    assert [number for number, *_ in drawn] == [1, 2, 3, 4]
    kinds = []
    for i, (x, (number, title, picture)) in enumerate(zip(features(body), drawn, strict=True)):
        with torch.no_grad():
            tokens = neck.norms[i](x.flatten(2).transpose(1, 2))
            own = neck.reducers[i].associate(tokens, GRIDS[i])
        wanted = draw_token_regions(IMAGE, own, GRIDS[i], "distinct", stride=4 * 2**i)
        assert np.array_equal(picture, wanted)
        assert title.startswith(f"neck level {number}: ")
        assert title.endswith(f" {REDUCERS[name].reduced_name} of {GRIDS[i][0]} x {GRIDS[i][1]} tokens")
        kinds.append(len(np.unique(wanted.reshape(-1, 3), axis=0)))
    assert kinds[0] > 1 and REDUCERS[name].reduced_name != "reduced tokens"


def test_titles_count_the_reduced_tokens_of_each_level() -> None:
    configs = [
        dict(type="mmvit_plugins.SuperTokens", cell=8),
        dict(type="mmvit_plugins.TokenMerging", r=30),
        dict(type="mmvit_plugins.InformativeTokens", keep_ratio=0.2),
    ]
    neck = NeckTokens(backbone(), [build([*configs, None])]).eval()
    titles = [title for _, title, _ in draw_stages(neck, IMAGE, Normalisation(), "mean", 1)]
    assert titles == [
        "neck level 1: 3 x 4 super tokens of 19 x 26 tokens",
        "neck level 2: 100 merged tokens of 10 x 13 tokens",
        "neck level 3: 7 kept tokens of 5 x 7 tokens",
    ]


def test_the_map_of_a_neck_is_what_its_forward_uses() -> None:
    """Places that the map drops, and no others, keep their value."""
    neck, x = build(dict(type="mmvit_plugins.WindowPruning", window=2)), features(backbone())
    for layer in neck.to_maps:
        nn.init.normal_(layer.weight)
    with torch.no_grad():
        y = neck(x)
    for level, token_map, grid, cells in neck.token_maps(x):
        unchanged = (y[level] == x[level]).all(dim=1).flatten(1)
        dropped = token_map.weight.sum(dim=2) <= 0
        assert grid == GRIDS[level] and cells == (1, token_map.num)
        assert torch.equal(unchanged, dropped) and dropped.any() and not dropped.all()


def test_levels_of_several_necks_count_on_and_each_sees_what_comes_in() -> None:
    first = build([None, reducer("SuperTokens"), None, None])
    nn.init.normal_(first.to_maps[0].weight)
    second = build([reducer("InformativeTokens")] * 2 + [None] * 2)
    body = backbone()
    both = NeckTokens(body, list_necks(nn.Sequential(first, second, nn.Identity()))).eval()
    assert len(both.necks) == 2 and list_necks(None) == [] and list_necks(first) == [first]
    found = both.token_maps(Normalisation()(IMAGE))
    assert [level for level, *_ in found] == [1, 4, 5]
    assert [both.reduced_names[level] for level, *_ in found] == ["super tokens", "kept tokens", "kept tokens"]
    x = features(body)
    with torch.no_grad():
        wanted = second.token_maps(first(x))[1][1].weight
    assert torch.equal(found[2][1].weight, wanted) and not torch.equal(wanted, second.token_maps(x)[1][1].weight)


def test_what_cannot_be_drawn_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    neck, x = build(reducer("SuperTokens")), features(backbone())
    with pytest.raises(ValueError, match="TokenReductionNeck takes"):
        neck.token_maps(x[:2])
    with pytest.raises(RuntimeError, match="eval"):
        neck.train().token_maps(x)
    with pytest.raises(ValueError, match="there is Identity"):
        NeckTokens(backbone(), [nn.Identity()])
    out = ["--part", "neck", "--out-dir", str(tmp_path)]
    assert visualize_tokens.main(out) == 2
    assert "--part neck needs --config" in capsys.readouterr().err
    require_host("mmseg")
    assert visualize_tokens.main([*out, "--config", "stvit/upernet_scenes"]) == 2
    said = capsys.readouterr().err
    assert "config stvit/upernet_scenes: no TokenReductionNeck" in said and "there is no neck at all" in said
    assert "token_reduction_neck/upernet_scenes" in said and not list(tmp_path.iterdir())
    arguments = ["--config", "efficientvit/seg_scenes", "--out-dir", str(tmp_path)]
    assert visualize_tokens.main(arguments) == 2
    said = capsys.readouterr().err
    assert "EfficientViT has no token_maps()" in said and "--part neck draws a TokenReductionNeck" in said
    assert visualize_tokens.main([*out, "--config", "token_reduction_neck/upernet_scenes", "--stages", "5"]) == 2
    assert "groups no tokens in neck levels [5]" in capsys.readouterr().err


def test_a_list_of_necks_of_a_detector(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    require_host("mmdet")
    arguments = ["--config", "token_reduction_neck/mask_rcnn_scenes", "--part", "neck", "--out-dir", str(tmp_path)]
    assert visualize_tokens.main([*arguments, "--size", "61", "83", "--scale", "1", "--stages", "1", "3"]) == 0
    assert "random weights" in capsys.readouterr().out
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["scene_neck_level1.png", "scene_neck_level3.png", "scene_neck_tokens.png"]
    assert cv2.imread(str(tmp_path / names[0])).shape == (61, 83, 3)


def test_trained_weights_and_several_configs_side_by_side(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    require_host("mmseg")
    from mmengine.registry import MODELS, init_default_scope

    from mmvit_plugins.cli.config_loading import replace_sync_batch_norm

    panels: list[list[tuple[str, np.ndarray]]] = []
    monkeypatch.setattr("mmvit_plugins.visualization.draw_panel", lambda panel, path, **_: panels.append(panel) or path)
    config = "token_reduction_neck/windows_upernet_scenes"
    cfg = visualize_tokens.load_config(visualize_tokens.parse_args(["--config", config]))
    init_default_scope("mmseg")
    replace_sync_batch_norm(cfg.model)
    torch.manual_seed(7)
    model = MODELS.build(cfg.model).eval()
    torch.save(dict(state_dict=model.state_dict()), tmp_path / "trained.pth")
    specs = [f"{config}={tmp_path / 'trained.pth'}@2", "configs/token_reduction_neck/clusters_upernet_scenes.py"]
    assert visualize_tokens.main(["--part", "neck", "--size", "75", "101", "--scale", "1", "--compare", *specs]) == 0
    assert "tensors loaded" in capsys.readouterr().out
    (_, scene), (first, picture), (second, _) = panels[0]
    # 3 x 4 windows of 4 x 4 tokens, half of them kept.
    assert first == f"{config}\nneck level 2: 6 kept windows of 10 x 13 tokens"
    assert second.startswith("token_reduction_neck/clusters_upernet_scenes\nneck level 1: ") and "clusters" in second
    x = Normalisation.of_config(cfg.model.data_preprocessor)(scene)
    with torch.no_grad():
        own = model.neck.token_maps(model.backbone(x))[1][1]
    assert np.array_equal(picture, draw_token_regions(scene, own, (10, 13), stride=8))
