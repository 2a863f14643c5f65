"""Segmentors that build on MMSegmentation; imported by name (see ``HOSTED`` in the registry)."""
