"""Metrics that the host libraries lack. Segmentation, detection and classification use the hosts' own metrics."""
