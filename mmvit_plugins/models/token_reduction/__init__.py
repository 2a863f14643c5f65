"""One file for each way of grouping tokens, all of them giving a :class:`TokenMap`."""

from .base import TokenReducer
from .super_tokens import SuperTokenMap, SuperTokens
from .token_map import TokenMap

__all__ = ["SuperTokenMap", "SuperTokens", "TokenMap", "TokenReducer"]
