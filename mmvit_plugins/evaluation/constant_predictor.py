"""What is reached without looking at the image: the most frequent class of the training data, everywhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from mmengine.evaluator import Evaluator
from mmengine.structures import PixelData

__all__ = ["constant_classifier", "constant_segmentor"]


def constant_segmentor(train_set: Any, test_set: Any, evaluator: Any) -> tuple[int, dict[str, float]]:
    """The label that is most frequent in ``train_set``, and the metrics of predicting it everywhere in ``test_set``.

    Args:
        train_set: segmentation dataset whose samples have ``gt_sem_seg``.
        test_set: likewise.
        evaluator: config of the metric.
    """
    classes = len(train_set.metainfo["classes"])
    counts = torch.zeros(classes, dtype=torch.long)
    for index in range(len(train_set)):
        labels = train_set[index]["data_samples"].gt_sem_seg.data.flatten()
        counts += torch.bincount(labels[labels < classes], minlength=classes)
    label = int(counts.argmax())
    judge = Evaluator(evaluator)
    judge.dataset_meta = test_set.metainfo

    def constant(sample: Any) -> Any:
        sample.pred_sem_seg = PixelData(data=torch.full_like(sample.gt_sem_seg.data, label))
        return sample

    samples = (constant(test_set[index]["data_samples"]) for index in range(len(test_set)))
    return label, judge.offline_evaluate(samples)


def constant_classifier(train_set: Any, test_set: Any) -> tuple[int, float]:
    """The label that is most frequent in ``train_set``, and its share of ``test_set`` in percent.

    Args:
        train_set: classification dataset with ``get_cat_ids``, one label for each sample.
        test_set: likewise.
    """
    train, test = (
        np.bincount([data.get_cat_ids(i)[0] for i in range(len(data))], minlength=len(data.metainfo["classes"]))
        for data in (train_set, test_set)
    )
    label = int(train.argmax())
    return label, 100.0 * float(test[label]) / float(test.sum())
