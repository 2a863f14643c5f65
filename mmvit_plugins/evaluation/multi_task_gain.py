"""How much better or worse a multi-task model is than single-task models of the same backbone."""

from __future__ import annotations

import math
from collections.abc import Mapping

__all__ = ["LOWER_IS_BETTER", "MAIN_METRICS", "multi_task_gain"]

#: The metric of each task that enters the gain, and the errors among them. Saliency: the survey's max-mIoU.
MAIN_METRICS = {
    "semseg": "semseg/mIoU",
    "parts": "parts/mIoU",
    "depth": "depth/rmse",
    "normals": "normals/mean",
    "boundary": "boundary/odsF",
    "saliency": "saliency/max_mIoU_survey",
    "instances": "coco/bbox_mAP",
}
LOWER_IS_BETTER = frozenset({"depth/rmse", "depth/rmse_per_image", "depth/abs_rel", "normals/mean", "normals/rmse"})


def multi_task_gain(
    multi: Mapping[str, float],
    single: Mapping[str, float],
    lower_is_better: frozenset[str] | set[str] = LOWER_IS_BETTER,
) -> float:
    """Delta_m = mean over tasks of ``(-1)^l (M_multi - M_single) / M_single``, in percent; l = 1 for errors.

    Source: Maninis et al., ASTMT (CVPR 2019), equation 4; Vandenhende et al. (TPAMI 2021).

    Args:
        multi: one metric for each task, of the multi-task model.
        single: the same metrics, each of the single-task model.
        lower_is_better: names of the errors among the metrics.

    Raises:
        ValueError: the two name different metrics, or none, a single-task value is 0, or a value is no finite number.

    Example:
        >>> multi_task_gain({"semseg/mIoU": 44.0, "depth/rmse": 0.5}, {"semseg/mIoU": 40.0, "depth/rmse": 0.5})
        5.0
    """
    if set(multi) != set(single) or not multi:
        raise ValueError(
            f"the gain compares the same metrics of both sides, got {sorted(multi)} of the multi-task model and "
            f"{sorted(single)} of the single-task models"
        )
    strange = [
        f"{side}-task {name} {values[name]}"
        for name in sorted(multi)
        for side, values in (("single", single), ("multi", multi))
        if not math.isfinite(values[name])
    ]
    if strange:
        raise ValueError(f"the gain is a mean of changes of finite numbers, got {', '.join(strange)}")
    zeros = [name for name, value in single.items() if value == 0]
    if zeros:
        raise ValueError(f"the gain is a change relative to the single-task value, which is 0 for {', '.join(zeros)}")
    changes = [
        (-1 if name in lower_is_better else 1) * (multi[name] - single[name]) / single[name] for name in sorted(multi)
    ]
    return 100 * sum(changes) / len(changes)
