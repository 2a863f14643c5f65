"""tools/predict_points.py: clouds of files and of scenes, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from hosts import require_host
from mmengine.config import Config
from mmengine.registry import DefaultScope

from mmvit_plugins.cli.predict import main as predict
from mmvit_plugins.cli.predict_points import main
from mmvit_plugins.models.losses import WeightedCrossEntropyLoss
from mmvit_plugins.visualization import draw_labels_from_above, draw_points_from_above

RANGE = (-2.0, 0.0, -1.0, 2.0, 2.0, 3.0)
CONFIG = "flatformer/bev_scenes.py"


def test_pictures_from_above() -> None:
    """The far end is at the top, higher points hide lower ones, points outside the range are left out."""
    points = np.array([[-1.9, 0.1, 0], [-1.9, 0.1, 2], [1.9, 1.9, 0], [5, 1, 0]], np.float32)
    picture = draw_points_from_above(points, RANGE, (2, 4), scale=10)
    assert picture.shape == (20, 40, 3)
    assert picture[18, 1].tolist() == [255, 220, 90] and picture[0, 39].tolist() == [40, 60, 110]
    assert (picture != picture[10, 20]).any(-1).sum() == 8, "two dots of four pixels"
    labels = np.array([[0, 1], [1, 255]])
    drawn = draw_labels_from_above(labels, [(1, 2, 3), (4, 5, 6)], scale=3)
    assert drawn[5, 0].tolist() == [1, 2, 3] and drawn[5, 5].tolist() == [4, 5, 6] == drawn[0, 0].tolist()
    assert drawn[0, 5].tolist() == [200, 200, 200] and drawn.shape == (6, 6, 3)


def test_weighted_loss() -> None:
    """Against a loop; ignored labels have no weight and no gradient; a batch without labels has none at all."""
    torch.manual_seed(0)
    logits, label = torch.randn(2, 3, 2, 2, requires_grad=True), torch.tensor([[[0, 1], [2, 255]], [[2, 2], [1, 0]]])
    weights = (1.0, 2.0, 5.0)
    loss = WeightedCrossEntropyLoss(weights, loss_weight=0.5)
    total = above = 0.0
    for i, j, k in np.ndindex(2, 2, 2):
        y = int(label[i, j, k])
        if y != 255:
            total += weights[y]
            above -= weights[y] * float(logits.detach()[i, :, j, k].log_softmax(0)[y])
    value = loss(logits, label, ignore_index=255)
    assert float(value) == pytest.approx(0.5 * above / total, rel=1e-5) and loss.loss_name == "loss_ce"
    value.backward()
    assert (logits.grad[0, :, 1, 1] == 0).all() and (logits.grad[1] != 0).all()
    assert float(loss(logits, torch.full_like(label, 255), ignore_index=255)) == 0
    half = torch.full(label.shape, 0.5)
    assert float(loss(logits, label, half, ignore_index=255)) == pytest.approx(0.5 * float(value), rel=1e-5)
    for wrong in ((), (1.0, -1.0)):
        with pytest.raises(ValueError, match="class_weight"):
            WeightedCrossEntropyLoss(wrong)


def test_the_weighted_loss_is_mmsegmentations() -> None:
    require_host("mmseg")
    from mmseg.models.losses import CrossEntropyLoss

    logits, label = torch.randn(2, 3, 4, 5), torch.randint(0, 3, (2, 4, 5))
    wanted = CrossEntropyLoss(class_weight=[1.0, 2.0, 0.5], loss_weight=0.4)(logits, label, ignore_index=255)
    torch.testing.assert_close(WeightedCrossEntropyLoss((1.0, 2.0, 0.5), 0.4)(logits, label, ignore_index=255), wanted)


def test_clouds_and_scenes(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Label maps, pictures and JSON; an empty cloud is legal; predict.py names this tool."""
    require_host("mmseg")
    cfg = Config.fromfile(root / "configs" / CONFIG)
    with DefaultScope.overwrite_default_scope("mmseg"):
        import mmseg.models  # noqa: F401
        from mmseg.registry import MODELS

        torch.save(dict(state_dict=MODELS.build(cfg.model).state_dict()), tmp_path / "random.pth")
    rng = np.random.default_rng(0)
    np.save(tmp_path / "cloud.npy", rng.uniform((-3, 2, 0), (3, 7, 1), (300, 3)))
    np.save(tmp_path / "empty.npy", np.zeros((0, 3), np.float32))
    model = ["--config", CONFIG, "--checkpoint", str(tmp_path / "random.pth"), "--out-dir", str(tmp_path / "out")]
    clouds = [str(tmp_path / "cloud.npy"), str(tmp_path / "empty.npy")]
    assert main([*clouds, *model, "--scenes", "2"]) == 0
    found = json.loads((tmp_path / "out/predictions.json").read_text())
    assert [entry.get("right") is not None for entry in found["clouds"]] == [False, False, True, True]
    assert all(sum(entry["class_shares"].values()) == pytest.approx(1) for entry in found["clouds"])
    labels = cv2.imread(str(tmp_path / "out/labels/cloud.png"), -1)
    assert labels.shape == (48, 48) and labels.max() < 5
    assert cv2.imread(str(tmp_path / "out" / found["clouds"][2]["overlay"])).shape == (48 * 8, 2 * 48 * 8, 3)
    assert (tmp_path / "out/panel.png").stat().st_size > 5000
    capsys.readouterr()
    photo = tmp_path / "photo.png"
    cv2.imwrite(str(photo), np.zeros((8, 8, 3), np.uint8))
    assert predict([str(photo), *model]) == 2
    assert "tools/predict_points.py" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (np.zeros((4, 2)), r"\(4, 2\)"),
        (np.full((1, 3), np.nan), "not finite"),
        (b"no array", "no .npy"),
        (None, "there is no"),
    ],
)
def test_refused_files(content: object, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "x.npy"
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content is not None:
        np.save(file, content)
    model = ["--config", CONFIG, "--checkpoint", "x.pth"]
    assert main([str(file), *model]) == 2

    assert re.search(said, capsys.readouterr().err)
    assert main(model) == 2
    assert "--scenes" in capsys.readouterr().err
