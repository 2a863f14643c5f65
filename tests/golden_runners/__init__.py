"""Goldens whose manifests have a form of their own: one module for each family, with ``check``."""
