"""The dense tasks: under which keys their label maps travel, and which value means "no label here".

One table for the loading steps, the augmentations, the losses and the metrics, so that a pixel which one of them marks
as unknown is unknown to all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["TASK_MAPS", "TaskMap", "find_task_map"]

IGNORED_LABEL = 255


@dataclass(frozen=True)
class TaskMap:
    """Where the label map of a task lives.

    Attributes:
        results_key: key in a pipeline's dict, an array (H, W) or (H, W, channels).
        field: ``gt_<field>`` and ``pred_<field>`` of a :class:`MultiTaskSample`, PixelData (channels, H, W).
        channels: values at each pixel of the label.
        fill: value of a pixel without label.
        is_label: whether the values are class numbers (integers) or measurements (float32).
    """

    results_key: str
    field: str
    channels: int
    fill: int
    is_label: bool

    @property
    def truth(self) -> str:
        """Name of the label's field in a sample."""
        return f"gt_{self.field}"

    @property
    def prediction(self) -> str:
        """Name of the prediction's field in a sample."""
        return f"pred_{self.field}"


#: Semantic segmentation has the keys of MMSegmentation, so that its transforms and its metric work on them.
#: Depth: metres along the optical axis, 0 unknown. Normals: unit vectors in the camera frame (x right, y down,
#: z forward), zero vector unknown. The others: class numbers, 255 unknown.
TASK_MAPS: dict[str, TaskMap] = {
    "semseg": TaskMap("gt_seg_map", "sem_seg", 1, IGNORED_LABEL, True),
    "parts": TaskMap("gt_parts", "parts", 1, IGNORED_LABEL, True),
    "depth": TaskMap("gt_depth", "depth", 1, 0, False),
    "normals": TaskMap("gt_normals", "normals", 3, 0, False),
    "boundary": TaskMap("gt_boundary", "boundary", 1, IGNORED_LABEL, True),
    "saliency": TaskMap("gt_saliency", "saliency", 1, IGNORED_LABEL, True),
}


def find_task_map(task: str) -> TaskMap:
    """The entry of ``TASK_MAPS``.

    Raises:
        ValueError: there is none of that name.
    """
    if task not in TASK_MAPS:
        raise ValueError(f"there is no dense task {task!r}; use names out of {', '.join(TASK_MAPS)}.")
    return TASK_MAPS[task]
