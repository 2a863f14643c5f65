"""Point clouds of the built-in scenes seen from above: data, pillars, and configs/flatformer/bev_scenes.py."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hosts import require_host
from mmengine.config import Config
from mmengine.registry import DefaultScope

from mmvit_plugins.datasets import FlipPoints, LoadSceneBEV, PackPoints, ScenesBEVDataset
from mmvit_plugins.datasets.scenes import render_scene
from mmvit_plugins.datasets.scenes.bird_eye import BEV_CLASSES, IGNORED, bird_eye_map, covers, ground_points
from mmvit_plugins.datasets.scenes.sampling import sample_scene
from mmvit_plugins.models import PillarBackbone, PillarFeatures
from mmvit_plugins.registry import MODELS

RANGE, EXTENT = (-6.4, 0.0, -0.5, 6.4, 12.8, 3.5), (-6.4, 0.0, 6.4, 12.8)


# --- the data -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("index", range(6))
def test_points_and_map_belong_together(index: int) -> None:
    """Points of the ground lie on it; points of an object stand above its outline, by their own labels."""
    scene = render_scene(seed=0, split="val", index=index, size=(96, 96))
    points, labels = ground_points(scene), scene.point_labels
    assert np.abs(points[labels == 1, 2]).max() < 1e-4
    assert points[labels > 1, 2].min() > -1e-4
    seen = bird_eye_map(scene, EXTENT, (512, 512))
    cell = np.floor(points[:, :2] / (12.8 / 512)).astype(int) + (256, 0)
    inside = ((cell >= 1) & (cell < 511)).all(axis=1)
    cell, labels = cell[inside], labels[inside]
    around = [seen[cell[:, 1] + j, cell[:, 0] + i] for i in (-1, 0, 1) for j in (-1, 0, 1)]
    # Upright sides stand on the rim of an outline: the cell or one next to it is below the object.
    objects = np.stack([(one == labels - 1) | (one == IGNORED) for one in around]).any(axis=0)
    assert objects[labels > 1].all()
    # The ground below the overhang of a sphere or a lying cylinder is in sight; below a box or a cone it is not.
    covered = np.isin(np.stack(around), [BEV_CLASSES.index("box"), BEV_CLASSES.index("cone")]).all(axis=0)
    assert not covered[labels == 1].any()


def test_areas_are_those_of_the_shapes() -> None:
    """Circle, rectangle and lying cylinder, against their formulas."""
    kinds = set()
    for index in range(30):
        for item in sample_scene(0, "test", index).objects:
            a, b, c = item.half_size
            reach = 1.2 * math.hypot(a, b, c)
            line = np.linspace(-reach, reach, 401)
            below = covers(item, item.center[0] + line, item.center[1] + line[:, None])
            lies = item.rotation[2][2] == 0
            area = 4 * a * b if item.shape == "box" else 4 * b * c if lies else math.pi * a * b
            assert below.sum() * (line[1] - line[0]) ** 2 == pytest.approx(area, rel=0.02)
            assert not below[[0, -1]].any() and not below[:, [0, -1]].any()
            kinds.add((item.shape, lies))
    assert kinds == {(shape, False) for shape in BEV_CLASSES[1:]} | {("cylinder", True)}


def test_only_what_the_camera_looks_at_is_judged() -> None:
    scene = render_scene(seed=0, split="val", index=0, size=(96, 96))
    seen = bird_eye_map(scene, EXTENT, (64, 64))
    assert (seen[0] == IGNORED).all(), "the ground below the camera"
    assert (seen[-1, 28:36] != IGNORED).all() and (seen[20, [0, -1]] == IGNORED).all()
    behind = bird_eye_map(scene, (-5, -5, 5, 0), (10, 10))
    assert (behind == IGNORED).all()


def dataset(**changes: object) -> ScenesBEVDataset:
    load = dict(type="mmvit_plugins.LoadSceneBEV", point_cloud_range=RANGE, cells=(32, 48))
    return ScenesBEVDataset(split="val", num_scenes=3, size=(48, 48), pipeline=[load], **changes)


def test_samples_hold_points_and_map() -> None:
    sample = dataset()[1]
    points, low, high = sample["points"], np.array(RANGE[:3]), np.array(RANGE[3:])
    assert points.dtype == np.float32 and points.shape[1] == 3 and len(points) > 500
    assert (points >= low).all() and (points < high).all()
    assert sample["gt_seg_map"].shape == sample["img_shape"] == sample["ori_shape"] == (32, 48)
    assert dataset().metainfo["classes"] == BEV_CLASSES and dataset().metainfo["label_map"] is None
    again = dataset(cache=True)
    for _ in range(2):
        assert np.array_equal(again[1]["points"], points)


def test_a_flip_mirrors_both() -> None:
    sample = dataset()[0]
    flipped = FlipPoints(1.0)(dict(sample))
    assert flipped["flip"] and flipped["flip_direction"] == "horizontal" and not sample["flip"]
    assert np.array_equal(flipped["points"], sample["points"] * np.array([-1, 1, 1], np.float32))
    assert np.array_equal(flipped["gt_seg_map"], sample["gt_seg_map"][:, ::-1])
    assert np.array_equal(FlipPoints(1.0)(dict(flipped))["points"], sample["points"])
    assert FlipPoints(0.0)(dict(sample))["points"] is sample["points"]


def test_packed_samples_are_those_of_mmsegmentation() -> None:
    require_host("mmseg")
    sample = dataset()[0]
    packed = PackPoints()(sample)
    assert packed["inputs"].shape == (len(sample["points"]), 3) and packed["inputs"].dtype == torch.float32
    assert packed["data_samples"].gt_sem_seg.data.shape == (1, 32, 48)
    assert packed["data_samples"].img_shape == (32, 48) and packed["data_samples"].img_id == 0


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: LoadSceneBEV((0, 0, 0, 0, 1, 1), (4, 4)), "point_cloud_range"),
        (lambda: LoadSceneBEV(RANGE, (4, 0)), r"\(4, 0\)"),
        (lambda: LoadSceneBEV(RANGE, (4, 4)).transform({}), "ScenesBEVDataset"),
        (lambda: FlipPoints(1.5), r"1\.5"),
        (lambda: dataset(metainfo=dict(classes=("cone", "box"))), "cone"),
        (lambda: PillarFeatures(RANGE[:4], (4, 4)), "point_cloud_range"),
        (lambda: PillarFeatures(RANGE, (4, 0)), "grid"),
        (lambda: PillarFeatures(RANGE, (4, 4), in_channels=2), "in_channels"),
        (lambda: PillarBackbone({}, {}, (8,), (1, 1)), "depths"),
    ],
)
def test_illegal_arguments_are_refused(build: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        build()


# --- the model ----------------------------------------------------------------------------------------------


def test_pillars_are_the_cells_with_points() -> None:
    """Against a loop over the points: coordinates, description and the largest values."""
    torch.manual_seed(0)
    pillars = PillarFeatures((-2, 0, -1, 2, 3, 1), (4, 6), in_channels=4, out_channels=5)
    clouds = [torch.rand(40, 4) * torch.tensor([5, 4, 1, 1]) - torch.tensor([2.5, 0.5, 0, 0]), torch.zeros(0, 4)]
    clouds.append(torch.tensor([[0.1, 0.1, 0.0, 1.0]]))
    features, coors = pillars(clouds)
    members: dict[tuple[int, ...], list[torch.Tensor]] = {}
    for i, cloud in enumerate(clouds):
        for point in cloud:
            x, y, z = (float(v) for v in point[:3])
            if -2 <= x < 2 and 0 <= y < 3 and -1 <= z < 1:
                members.setdefault((i, 0, math.floor(y / 0.5), math.floor(x + 2)), []).append(point)
    assert [tuple(row) for row in coors.tolist()] == sorted(members)
    for row, feature in zip(coors.tolist(), features, strict=True):
        points = torch.stack(members[tuple(row)])
        side, middle = torch.tensor([1, 0.5]), torch.tensor([row[3] + 0.5 - 2, (row[2] + 0.5) * 0.5])
        scaled = (points[:, :3] - torch.tensor([0, 1.5, 0])) / torch.tensor([2, 1.5, 1])
        from_mean = points[:, :3] - points[:, :3].mean(0)
        from_mean[:, :2] /= side / 2
        from_middle = (points[:, :2] - middle) / (side / 2)
        described = torch.cat([scaled, points[:, 3:], from_mean, from_middle], 1)
        wanted = pillars.norm(pillars.linear(described)).relu().amax(0)
        torch.testing.assert_close(feature, wanted, rtol=1e-4, atol=1e-5)


def bev_backbone() -> PillarBackbone:
    config = dict(
        type="mmvit_plugins.PillarBackbone",
        pillars=dict(type="mmvit_plugins.PillarFeatures", point_cloud_range=RANGE, grid=(9, 7), out_channels=16),
        encoder=dict(
            type="mmvit_plugins.FlatFormerEncoder",
            in_channels=16,
            num_heads=2,
            num_blocks=1,
            window_shape=(3, 3, 1),
            group_size=8,
            sparse_shape=(9, 7, 1),
        ),
        dims=(8, 12),
        depths=(1, 2),
    )
    return MODELS.build(config)


def test_maps_of_clouds_of_any_size() -> None:
    torch.manual_seed(0)
    model = bev_backbone().eval()
    low, high = torch.tensor(RANGE).view(2, 3)
    clouds = [low + (high - low) * torch.rand(n, 3) for n in (200, 0, 1)]
    with torch.no_grad():
        maps = model(clouds)
        assert [tuple(m.shape) for m in maps] == [(3, 8, 7, 9), (3, 12, 4, 5)]
        assert model.out_channels == (8, 12) and model.out_strides == (1, 2)
        for i, cloud in enumerate(clouds):
            for whole, alone in zip(maps, model([cloud]), strict=True):
                torch.testing.assert_close(whole[i : i + 1], alone, rtol=1e-4, atol=1e-5)
        order = torch.randperm(200)
        torch.testing.assert_close(model([clouds[0][order]])[0], maps[0][:1], rtol=1e-4, atol=1e-5)
    model.train()
    sum(m.square().mean() for m in model(clouds)).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_the_shipped_segmenter_learns_one_scene(root: object) -> None:
    """A few steps of the real config on two scenes bring the loss down; flipped views are turned back."""
    require_host("mmseg")
    cfg = Config.fromfile(root / "configs/flatformer/bev_scenes.py")
    with DefaultScope.overwrite_default_scope("mmseg"):
        import mmseg.models  # noqa: F401
        from mmseg.registry import DATASETS
        from mmseg.registry import MODELS as SEG_MODELS

        model = SEG_MODELS.build(cfg.model).train()
        data = cfg.train_dataloader.dataset | dict(num_scenes=2, size=(48, 48))
        samples = [DATASETS.build(data)[i] for i in range(2)]
        views = DATASETS.build(data | dict(pipeline=cfg.tta_pipeline))[0]
    batch = {key: [sample[key] for sample in samples] for key in ("inputs", "data_samples")}
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    losses = []
    for _ in range(6):
        loss, _ = model.parse_losses(model(**model.data_preprocessor(batch, True), mode="loss"))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.8 * losses[0]
    assert [s.flip for s in views["data_samples"]] == [False, True]
    maps = [s.gt_sem_seg.data for s in views["data_samples"]]
    assert torch.equal(maps[0].flip(2), maps[1])
    model.eval()
    as_it_is = views["data_samples"][1].clone()
    as_it_is.set_metainfo(dict(flip=False))
    views = dict(inputs=[views["inputs"][1]] * 2, data_samples=[views["data_samples"][1], as_it_is])
    with torch.no_grad():
        back, mirrored = model(**model.data_preprocessor(views), mode="predict")
    assert back.pred_sem_seg.data.shape == (1, 48, 48)
    assert torch.equal(back.pred_sem_seg.data, mirrored.pred_sem_seg.data.flip(2))
