"""What is known and predicted about one image, for any number of tasks."""

from __future__ import annotations

from mmengine.structures import BaseDataElement

__all__ = ["MultiTaskSample"]


class MultiTaskSample(BaseDataElement):
    """Labels and predictions of one image.

    ``gt_<field>`` and ``pred_<field>`` are PixelData (channels, H, W) with the fields of
    :data:`~mmvit_plugins.structures.TASK_MAPS`; ``gt_instances``, ``ignored_instances`` and ``pred_instances`` are
    InstanceData as in MMDetection. A task without a label has no ``gt_`` field: that is how a partially labelled data
    set looks.

    Meta information: ``img_path``, ``ori_shape``, ``img_shape``, ``scale_factor`` (width, height), and ``depth_scale``,
    the factor by which the depths of the image's scene were divided when it was resized (1 if not); predicted depths
    are multiplied by it. After a prediction ``tasks`` names the tasks of the model.
    """
