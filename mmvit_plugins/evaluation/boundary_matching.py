"""Compare two sets of boundary pixels: thin lines, and a one-to-one matching within a tolerance.

The protocol of the Berkeley benchmark (Martin, Fowlkes and Malik, TPAMI 2004): a predicted pixel is right if it can be
assigned to a true pixel of its own within a distance. The benchmark assigns at minimum cost with a cost for leaving out
that is a hundred times the largest distance, which makes the number of pairs as large as possible; that number is all
that counts, so an exact maximum matching is computed here.
"""

from __future__ import annotations

import cv2
import numpy as np

__all__ = ["count_matches", "suppress_non_maxima", "thin_lines"]


def count_matches(prediction: np.ndarray, truth: np.ndarray, radius: float) -> int:
    """Largest number of one-to-one pairs of a predicted and a true pixel at most ``radius`` pixels apart.

    Args:
        prediction: (H, W) bool.
        truth: (H, W) bool.
        radius: Euclidean distance in pixels, inclusive.
    """
    count = int(truth.sum())
    if not count:
        return 0
    # Pixels far from every true one can match nothing; of a noisy map they are most.
    distance = cv2.distanceTransform((~truth).astype(np.uint8), cv2.DIST_L2, cv2.DIST_MASK_PRECISE)
    rows, columns = np.nonzero(prediction & (distance <= radius + 0.5))
    if not len(rows):
        return 0
    reach = int(radius)
    numbers = np.full(tuple(side + 2 * reach for side in truth.shape), -1, dtype=np.int64)
    inner = numbers[reach : reach + truth.shape[0], reach : reach + truth.shape[1]]
    inner[truth] = np.arange(count)
    left, right = [], []
    for dy in range(-reach, reach + 1):
        for dx in range(-reach, reach + 1):
            if dy * dy + dx * dx <= radius * radius:
                near = numbers[rows + dy + reach, columns + dx + reach]
                hit = np.nonzero(near >= 0)[0]
                left.append(hit)
                right.append(near[hit])
    left, right = np.concatenate(left), np.concatenate(right)
    if not len(left):
        return 0
    return _matching_size(left, right, (len(rows), count))


def _matching_size(left: np.ndarray, right: np.ndarray, shape: tuple[int, int]) -> int:
    """Number of pairs of a maximum matching of a bipartite graph.

    As a flow of 1 through every vertex: Dinic's algorithm takes at most O(edges sqrt(vertices)) steps for such a
    network. scipy's ``maximum_bipartite_matching`` finds the same number, but needs from 0.1 s to two minutes for one
    noisy picture, depending on the order of the vertices.

    Args:
        left: (edges,) vertex of the first side of each edge.
        right: (edges,) vertex of the second side.
        shape: number of vertices of each side.
    """
    from scipy.sparse import csr_matrix  # comes with MMSegmentation and MMDetection
    from scipy.sparse.csgraph import maximum_flow

    first, second = shape
    source, sink = first + second, first + second + 1
    start = np.concatenate([np.full(first, source), left, first + np.arange(second)])
    end = np.concatenate([np.arange(first), first + right, np.full(second, sink)])
    capacity = np.ones(len(start), dtype=np.int32)
    network = csr_matrix((capacity, (start, end)), shape=(sink + 1, sink + 1))
    return int(maximum_flow(network, source, sink).flow_value)


def thin_lines(mask: np.ndarray) -> np.ndarray:
    """Thin lines to one pixel without breaking or shortening them.

    Lam, Lee and Suen (TPAMI 1992), the two-step rule that MATLAB's ``bwmorph(.., 'thin', Inf)`` uses.

    Args:
        mask: (H, W) bool.

    Returns:
        (H, W) bool.
    """
    padded = np.pad(mask.astype(bool), 1)
    while True:
        before = int(padded.sum())
        for second in (False, True):
            y, x = np.nonzero(padded)
            # x1 to x8: from the east counter-clockwise.
            around = [padded[y + dy, x + dx] for dy, dx in _NEIGHBOURS]
            padded[y, x] = ~_is_removable(around, second)
        if int(padded.sum()) == before:
            return padded[1:-1, 1:-1]


_NEIGHBOURS = ((0, 1), (-1, 1), (-1, 0), (-1, -1), (0, -1), (1, -1), (1, 0), (1, 1))


def _is_removable(around: list[np.ndarray], second: bool) -> np.ndarray:
    """Whether a pixel with these eight neighbours (N,) each goes in the first or second step."""
    x1, x2, x3, x4, x5, x6, x7, x8 = around
    ring = [*around, x1]
    crossings = sum((~ring[2 * i] & (ring[2 * i + 1] | ring[2 * i + 2])).astype(np.int8) for i in range(4))
    pairs = sum((ring[2 * i] | ring[2 * i + 1]).astype(np.int8) for i in range(4))
    shifted = sum((ring[2 * i + 1] | ring[2 * i + 2]).astype(np.int8) for i in range(4))
    ends = np.minimum(pairs, shifted)
    side = (x6 | x7 | ~x4) & x5 if second else (x2 | x3 | ~x8) & x1
    return (crossings == 1) & (ends >= 2) & (ends <= 3) & ~side


def suppress_non_maxima(probability: np.ndarray) -> np.ndarray:
    """Keep the crest of each ridge in a map of boundary probabilities, set the rest to 0.

    As in the structured-edge toolbox (Dollar and Zitnick, TPAMI 2015), whose step HED and its followers use: the
    direction across a line comes from second derivatives of the smoothed map; a pixel stays if no neighbour across the
    line, one pixel away and interpolated, is larger by more than 1 %. The toolbox also fades the outermost pixels of
    the image; this does not.

    Args:
        probability: (H, W) float, 0 to 1.

    Returns:
        (H, W) float32.
    """
    probability = np.ascontiguousarray(probability, dtype=np.float32)
    triangle = np.array([1, 2, 3, 4, 5, 4, 3, 2, 1], dtype=np.float32) / 25
    smooth = cv2.sepFilter2D(probability, cv2.CV_32F, triangle, triangle, borderType=cv2.BORDER_REFLECT)
    if min(probability.shape) < 2:
        return probability
    dy, dx = np.gradient(smooth)
    dyy, dyx = np.gradient(dy)
    _, dxx = np.gradient(dx)
    # The eigenvector of the Hessian with the larger curvature, of either sign, points across: bent down on the crest,
    # up on the slopes. The formula gives that of the larger signed one; with a negative trace it is the other.
    angle = 0.5 * np.arctan2(2 * dyx, dxx - dyy) + np.where(dxx + dyy < 0, np.pi / 2, 0)
    y, x = np.mgrid[: probability.shape[0], : probability.shape[1]].astype(np.float32)
    kept = np.ones(probability.shape, dtype=bool)
    for sign in (-1, 1):
        across_x = (x + sign * np.cos(angle)).astype(np.float32)
        across_y = (y + sign * np.sin(angle)).astype(np.float32)
        neighbour = cv2.remap(probability, across_x, across_y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
        kept &= probability * 1.01 >= neighbour
    return np.where(kept, probability, np.float32(0))
