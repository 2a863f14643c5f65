"""Boundaries: matching, thinning and suppression against independent libraries, odsF against cases done by hand."""

from __future__ import annotations

import time

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist
from task_samples import run

from mmvit_plugins.evaluation import BoundaryMetric
from mmvit_plugins.evaluation.boundary_matching import count_matches, suppress_non_maxima, thin_lines

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
