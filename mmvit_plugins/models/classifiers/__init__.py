"""Classifiers that MMPretrain lacks, used in its configs and by its runner."""

from .dvt import DVTClassifier

__all__ = ["DVTClassifier"]
