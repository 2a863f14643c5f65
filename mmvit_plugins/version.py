"""The version of the package, in one place for setup.py and the code."""

__version__ = "0.1.0"
