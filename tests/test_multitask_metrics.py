"""Metrics of dense tasks against cases worked out by hand and against independent libraries."""

from __future__ import annotations

import time

import cv2
import numpy as np
import pytest
import torch
from hosts import require_host
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from mmengine.structures import PixelData
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

from mmvit_plugins.evaluation import (
    BoundaryMetric,
    DepthErrorMetric,
    LabelMetric,
    NormalsMetric,
    SaliencyMetric,
    multi_task_gain,
)
from mmvit_plugins.evaluation.boundary_matching import count_matches, suppress_non_maxima, thin_lines
from mmvit_plugins.evaluation.task_metric import TaskMetric
from mmvit_plugins.structures import TASK_MAPS, MultiTaskSample


def run(metric: TaskMetric, *pairs: tuple) -> dict[str, float]:
    """The metric over (prediction, truth) pairs of (C, H, W) or (H, W); None is missing."""
    samples = []
    for pair in pairs:
        sample = MultiTaskSample(metainfo=dict(img_path="made up"))
        for name, values in zip((metric.map.prediction, metric.map.truth), pair, strict=True):
            if values is not None:
                values = np.asarray(values)
                sample.set_field(PixelData(data=torch.as_tensor(values if values.ndim == 3 else values[None])), name)
        samples.append(sample.to_dict())
    metric.process({}, samples)
    return metric.evaluate(len(pairs))


# --- depth and normals ----------------------------------------------------------------------------------------------


def test_depth_over_the_set_and_per_image() -> None:
    """One image with three known pixels off by 0, 0 and 3, one with a single pixel off by 1."""
    found = run(
        DepthErrorMetric(),
        (np.array([[1.0, 2.0], [6.0, 9.0]]), np.array([[1.0, 2.0], [3.0, 0.0]])),
        (np.array([[5.0, 5.0]]), np.array([[4.0, np.nan]])),
        (np.array([[7.0]]), np.array([[0.0]])),
    )
    assert found["depth/rmse"] == pytest.approx(np.sqrt((9 + 1) / 4))
    assert found["depth/rmse_per_image"] == pytest.approx((np.sqrt(3) + 1) / 2)
    assert found["depth/abs_rel"] == pytest.approx((0 + 0 + 1 + 0.25) / 4)


def test_normals_by_hand() -> None:
    """0, 90 and 180 degrees; a fourth pixel has no label. Lengths of predictions do not matter."""
    truth = np.array([[1, 1, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0]], float)[:, None]
    pred = np.array([[2, 0, -1, 1], [0, 3, 0, 1], [0, 0, 0, 1]], float)[:, None]
    found = run(NormalsMetric(), (pred, truth))
    assert found["normals/mean"] == pytest.approx(90)
    assert found["normals/rmse"] == pytest.approx(np.sqrt((90**2 + 180**2) / 3))
    assert found["normals/within_30"] == pytest.approx(100 / 3)


def test_normals_equal_scipy_rotations() -> None:
    """The angle of a rotation about an axis across the vector, from scipy, down to millionths of a degree."""
    from scipy.spatial.transform import Rotation

    angles = np.array([1e-6, 0.01, 5.0, 60.0, 179.0])
    truth = np.tile([[0.0], [0.0], [1.0]], 5)
    pred = Rotation.from_rotvec(np.radians(angles)[:, None] * [[1.0, 0.0, 0.0]]).apply(truth.T).T
    found = run(NormalsMetric(), (pred[:, None], truth[:, None]))
    assert found["normals/mean"] == pytest.approx(angles.mean(), abs=1e-9)


def test_quantized_normals_move_by_less_than_a_step() -> None:
    truth = np.random.RandomState(0).randn(3, 20, 20)
    truth /= np.linalg.norm(truth, axis=0)
    assert run(NormalsMetric(), (truth, truth))["normals/mean"] == 0
    error = run(NormalsMetric(quantize=True), (truth, truth))["normals/mean"]
    assert 0.05 < error < np.degrees(np.sqrt(3) / 255)


# --- classes --------------------------------------------------------------------------------------------------------


def test_miou_by_hand_and_as_mmsegmentation() -> None:
    require_host("mmseg")
    pred, truth = np.array([[0, 0, 1, 1]]), np.array([[0, 1, 1, 255]])
    found = run(LabelMetric(num_classes=3, task="parts"), (pred, truth), (pred, None))
    assert found["parts/mIoU"] == pytest.approx(50.0)  # 1/2 and 1/2; class 2 occurs nowhere
    assert found["parts/aAcc"] == pytest.approx(200 / 3, abs=0.01)

    from mmseg.evaluation import IoUMetric

    random = np.random.RandomState(0)
    pairs = [(random.randint(0, 5, (9, 8)), random.choice([0, 1, 2, 3, 4, 255], (9, 8))) for _ in range(3)]
    host = IoUMetric()
    host.dataset_meta = dict(classes=list("abcde"))
    host.process(
        {},
        [
            dict(pred_sem_seg=dict(data=torch.tensor(p)[None]), gt_sem_seg=dict(data=torch.tensor(t)[None]))
            for p, t in pairs
        ],
    )
    expected = host.evaluate(3)
    ours = run(LabelMetric(num_classes=5), *pairs)
    assert ours["semseg/mIoU"] == pytest.approx(expected["mIoU"], abs=0.006)  # the host rounds to two digits
    matrix = np.zeros((5, 5))
    for p, t in pairs:
        np.add.at(matrix, (t[t != 255], p[t != 255]), 1)
    iou = np.diag(matrix) / (matrix.sum(0) + matrix.sum(1) - np.diag(matrix))
    assert ours["semseg/mIoU"] == pytest.approx(100 * iou.mean(), abs=1e-4)


# --- boundaries -----------------------------------------------------------------------------------------------------

masks = st.tuples(st.integers(1, 9), st.integers(1, 9)).flatmap(lambda shape: arrays(bool, (2, *shape)))


@given(masks, st.floats(0, 4))
@settings(deadline=None, max_examples=60)
def test_matching_is_as_large_as_scipys_assignment(pair: np.ndarray, radius: float) -> None:
    prediction, truth = pair
    near = cdist(np.argwhere(prediction), np.argwhere(truth)) <= radius
    expected = near[linear_sum_assignment(near.astype(float), maximize=True)].sum() if near.size else 0
    assert count_matches(prediction, truth, radius) == expected


def test_matching_is_one_to_one() -> None:
    """Two predicted lines beside one true line: dilation would accept both, a matching accepts one."""
    truth = np.zeros((5, 10), bool)
    truth[2] = True
    prediction = np.zeros_like(truth)
    prediction[[1, 3]] = True
    assert count_matches(prediction, truth, 1.0) == 10


def test_matching_equals_the_benchmarks_minimum_cost() -> None:
    """Distances as costs and 100 times the radius for leaving a pixel out, as the Berkeley benchmark has it."""
    random = np.random.RandomState(1)
    for _ in range(10):
        prediction, truth = random.rand(2, 12, 12) > 0.8
        distance = cdist(np.argwhere(prediction), np.argwhere(truth))
        out = 100 * 2.0
        rows, columns = distance.shape
        cost = np.full((rows + columns, rows + columns), 0.0)
        cost[:rows, :columns] = np.where(distance <= 2.0, distance, 1e6)
        cost[:rows, columns:] = np.where(np.eye(rows), out, 1e6)
        cost[rows:, :columns] = np.where(np.eye(columns), out, 1e6)
        chosen = linear_sum_assignment(cost)
        pairs = ((chosen[0] < rows) & (chosen[1] < columns)).sum()
        assert count_matches(prediction, truth, 2.0) == pairs


def test_noisy_pictures_are_matched_in_seconds() -> None:
    """Some 14,000 pixels of noise around rings, for which scipy's bipartite matching took 13 s in reading order and two
    minutes in another. The number of pairs is that of scipy's assignment on a part that fits into memory."""
    random = np.random.default_rng(0)
    truth = np.zeros((480, 640), np.uint8)
    for _ in range(20):
        centre, axes = random.integers(50, 330, 2).tolist(), random.integers(20, 120, 2).tolist()
        cv2.ellipse(truth, centre, axes, 0, 0, 360, 1, 1)
    smooth = cv2.GaussianBlur(truth.astype(np.float32), (0, 0), 3)
    noise = cv2.GaussianBlur(random.standard_normal(truth.shape).astype(np.float32), (0, 0), 5)
    probability = np.clip(0.7 * smooth / smooth.max() + 0.1 * noise / noise.std() + 0.1, 0, 1)
    prediction, label = thin_lines(suppress_non_maxima(probability) >= 0.15), thin_lines(truth == 1)
    radius = 0.011 * 800
    start = time.process_time()
    pairs = count_matches(prediction, label, radius)
    assert time.process_time() - start < 5
    assert prediction.sum() > 10_000 and 6000 < pairs < label.sum()

    prediction, label = prediction[:300, :300], label[:300, :300]
    near = cdist(np.argwhere(prediction), np.argwhere(label)) <= radius
    expected = near[linear_sum_assignment(near.astype(np.float32), maximize=True)].sum()
    assert count_matches(prediction, label, radius) == expected > 2000


def test_thinning_equals_scikit_image() -> None:
    morphology = pytest.importorskip("skimage.morphology", reason="scikit-image (extra dev) is not installed")
    random = np.random.RandomState(0)
    for _ in range(60):
        mask = random.rand(*random.randint(1, 25, 2)) > random.rand()
        assert np.array_equal(thin_lines(mask), morphology.thin(mask))


def test_thinning_by_hand() -> None:
    bar = np.zeros((7, 12), bool)
    bar[2:5, 1:11] = True
    thin = thin_lines(bar)
    assert thin.sum(0).max() == 1 and thin[3].sum() >= 7
    assert np.array_equal(thin_lines(thin), thin)


@pytest.mark.parametrize("angle", [0, 30, 45, 90, 120])
def test_non_maxima_leave_the_crest(angle: float) -> None:
    """A straight ridge in any direction keeps its middle line, and nothing two pixels away from it."""
    y, x = np.mgrid[-20:21, -20:21]
    across = x * np.sin(np.radians(angle)) - y * np.cos(np.radians(angle))
    ridge = np.exp(-(across**2) / 8)
    kept = suppress_non_maxima(ridge) > 0
    inner = np.hypot(x, y) < 15
    assert not (kept & inner & (abs(across) > 1.5)).any()
    assert (kept & inner & (abs(across) < 0.75)).sum() >= 20


def test_ods_by_hand() -> None:
    """Two images, one threshold each that fits; pixels at 0.3 and 0.7 decide. No interpolation at a single step."""
    truth = np.zeros((9, 9), int)
    truth[4] = 1
    pred = np.zeros((9, 9))
    pred[4] = 0.7  # all of the line
    pred[0] = 0.3  # a false line
    metric = BoundaryMetric(max_dist=0.01, num_thresholds=9, nms=False)
    found = run(metric, (pred, truth))
    assert found["boundary/odsF"] == pytest.approx(100) and 0.3 < found["boundary/threshold"] <= 0.7
    # In a second image the weak line is the right one: F = 2 pairs / (predicted + true).
    metric = BoundaryMetric(max_dist=0.01, num_thresholds=9, nms=False)
    low = np.zeros((9, 9))
    low[4] = 0.3
    found = run(metric, (pred, truth), (low, truth), (low, None))
    assert found["boundary/oisF"] == pytest.approx(100)  # each image at its own threshold
    # All: P = 18/27, R = 1 -> F = 0.8; above 0.3: P = 1, R = 1/2 -> 2/3. Between them lines of P and R: the best F.
    share = np.linspace(0, 1, 101)
    precision, recall = 2 / 3 + share / 3, 1 - share / 2
    assert found["boundary/odsF"] == pytest.approx(
        100 * (2 * precision * recall / (precision + recall)).max(), abs=1e-6
    )


def test_tolerance_is_a_share_of_the_diagonal() -> None:
    """A line two pixels off counts in a picture of 300 x 400 (0.0075 x 500 = 3.75) and not in one of 60 x 80."""
    for scale, expected in ((1, 100), (0.2, 0)):
        height, width = int(300 * scale), int(400 * scale)
        truth, pred = np.zeros((height, width), int), np.zeros((height, width))
        truth[20, 5:-5], pred[22, 5:-5] = 1, 1.0
        assert run(BoundaryMetric(0.0075, 1, nms=False), (pred, truth))["boundary/odsF"] == expected


def test_ignored_pixels_of_boundaries() -> None:
    truth = np.zeros((9, 9), int)
    truth[4] = 1
    pred = np.zeros((9, 9))
    pred[4] = pred[8] = 0.9
    truth[8] = 255
    assert run(BoundaryMetric(0.01, 3, nms=False), (pred, truth))["boundary/odsF"] == pytest.approx(100)


# --- saliency -------------------------------------------------------------------------------------------------------


def test_saliency_by_hand() -> None:
    """One image: at thresholds below 0.4 three pixels are found, two of them right; above, one of two is found."""
    truth, pred = np.array([[1, 1, 0, 0, 255]]), np.array([[0.95, 0.4, 0.4, 0.0, 1.0]])
    found = run(SaliencyMetric(), (pred, truth))
    # Below 0.4: P 2/3, R 1, IoU 2/3. Above: P 1, R 1/2, IoU 1/2.
    assert found["saliency/max_mIoU_survey"] == pytest.approx(100 * 2 / 3)
    assert found["saliency/maxF_survey"] == pytest.approx(80)
    high, low = 1.3 * 0.5 / (0.3 + 0.5), 1.3 * (2 / 3) / (0.3 * 2 / 3 + 1)
    assert found["saliency/maxF_dataset"] == pytest.approx(100 * max(high, low))


def test_saliency_conventions_differ_as_published() -> None:
    """Per-image averages against counts over the set, and the second sigmoid of one implementation."""
    small, large = (np.array([[0.9]]), np.array([[1]])), (np.full((1, 99), 0.9), np.zeros((1, 99), int))
    found = run(SaliencyMetric(), small, large)
    assert found["saliency/max_mIoU_survey"] == pytest.approx(50)
    assert found["saliency/max_mIoU_dataset"] == pytest.approx(1)
    # sigmoid(0.03) = 0.5075 < 0.55: not found at any acting threshold, while all above 0 is found at 0.5 and below.
    found = run(SaliencyMetric(), (np.array([[0.03, 0.0]]), np.array([[1, 0]])))
    assert found["saliency/maxF_dataset"] == 0
    assert found["saliency/maxF_invpt"] == pytest.approx(100)
    # Published equivalents of .55, .60, .65 and .70.
    from mmvit_plugins.evaluation.saliency_metric import INVPT_EFFECTIVE

    assert INVPT_EFFECTIVE[10:14] == pytest.approx([0.20, 0.41, 0.62, 0.85], abs=0.005)


def test_saliency_equals_scikit_learn() -> None:
    sklearn = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
    random = np.random.RandomState(0)
    truth, pred = random.randint(0, 2, (1, 400)), random.rand(1, 400)
    thresholds = np.arange(1, 20) / 20
    expected = max(sklearn.fbeta_score(truth[0], pred[0] > t, beta=np.sqrt(0.3)) for t in thresholds)
    iou = max(sklearn.jaccard_score(truth[0], pred[0] > t) for t in thresholds)
    found = run(SaliencyMetric(), (pred, truth))
    assert found["saliency/maxF_dataset"] == pytest.approx(100 * expected)
    assert found["saliency/max_mIoU_dataset"] == pytest.approx(100 * iou)


# --- all ------------------------------------------------------------------------------------------------------------

METRICS = [LabelMetric(4), DepthErrorMetric(), NormalsMetric(), BoundaryMetric(num_thresholds=3), SaliencyMetric()]


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.task)
def test_missing_and_misplaced_samples(metric: TaskMetric) -> None:
    """Every sample leaves an entry, for the order of several processes; without any label there is no result."""
    entry = TASK_MAPS[metric.task]
    values = np.ones((entry.channels, 4, 5))
    metric.results.clear()
    metric.process({}, [{}, {}, {}])
    assert metric.results == [None, None, None]
    metric.results.clear()
    assert run(metric, (values, None), (None, values)) == {}
    sample = MultiTaskSample()
    sample.set_field(PixelData(data=torch.ones(entry.channels, 4, 5)), entry.truth)
    sample.set_field(PixelData(data=torch.ones(entry.channels, 4, 6)), entry.prediction)
    with pytest.raises(ValueError, match="labels are loaded after the image is resized"):
        metric.process({}, [sample.to_dict()])


def test_gain_of_published_rows() -> None:
    """R101 on PASCAL-Context as ASTMT lists it: the plain multi-task model loses 6.81 %, theirs 0.04 %."""
    names = ("semseg/mIoU", "parts/mIoU", "saliency/max_mIoU_survey", "normals/mean", "boundary/odsF")
    single, plain, astmt = (
        dict(zip(names, row, strict=True))
        for row in (
            (68.30, 60.70, 65.40, 14.61, 72.7),
            (63.20, 55.10, 63.60, 16.04, 69.2),
            (68.00, 61.12, 65.71, 14.68, 72.4),
        )
    )
    assert multi_task_gain(plain, single) == pytest.approx(-6.81, abs=0.02)
    assert multi_task_gain(astmt, single) == pytest.approx(-0.04, abs=0.02)
    assert multi_task_gain(single, single) == 0
    with pytest.raises(ValueError, match="same metrics"):
        multi_task_gain(plain, {"semseg/mIoU": 68.3})
    with pytest.raises(ValueError, match="is 0 for depth/rmse"):
        multi_task_gain({"depth/rmse": 1.0}, {"depth/rmse": 0.0})


def test_arguments() -> None:
    with pytest.raises(ValueError, match="max_dist > 0"):
        BoundaryMetric(max_dist=0)
    with pytest.raises(ValueError, match="semseg, parts, depth"):
        DepthErrorMetric(task="dept")
