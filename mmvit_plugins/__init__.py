"""Efficient vision transformers for MMPretrain, MMDetection and MMSegmentation.

Importing the package is cheap and needs nothing but Python: models, datasets and tools load when they are asked for.
"""

from .version import __version__

__all__ = ["__version__", "ensure_config_scopes"]


def ensure_config_scopes() -> None:
    """Make ``_base_ = ['mmvit_plugins::stvit/upernet_ade20k.py']`` work in mmengine configs.

    mmengine resolves ``scope::path`` through a table of the packages it knows. This adds the missing entry for
    ``mmvit_plugins`` and changes no other one. The tools call it before they parse a config; call it yourself before
    ``mmengine.Config.fromfile`` in your own scripts.
    """
    from .environment import add_config_scope

    add_config_scope()
