"""Metrics that the host libraries lack. Segmentation, detection and classification use the hosts' own metrics."""

from .exit_accuracy import ExitAccuracy

__all__ = ["ExitAccuracy"]

