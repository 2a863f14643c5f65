"""Blocks that more than one family uses, each in a file named by its concept."""

from .attention import SelfAttention
from .checkpointing import checkpoint_module
from .depthwise import ConvFFN, ResidualDepthwiseConv
from .memory_format import as_map, as_tokens

__all__ = [
    "ConvFFN",
    "ResidualDepthwiseConv",
    "SelfAttention",
    "as_map",
    "as_tokens",
    "checkpoint_module",
]
