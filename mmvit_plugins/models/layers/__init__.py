"""Blocks that more than one family uses, each in a file named by its concept."""

from .attention import SelfAttention
from .checkpointing import checkpoint_module
from .conv_chain import ConvChain, DSConv, FusedMBConv, MBConv, ResBlock
from .depthwise import ConvFFN, ResidualDepthwiseConv
from .group_attention import GroupAttention, GroupTransformerLayer, sine_positions
from .linear_attention import MultiScaleLinearAttention, relu_linear_attention
from .memory_format import as_map, as_output, as_tokens
from .row_strips import conv_norm_act
from .swin_block import SwinBlock
from .window_attention import WindowAttention, window_partition, window_unpartition

__all__ = [
    "ConvChain",
    "ConvFFN",
    "DSConv",
    "FusedMBConv",
    "GroupAttention",
    "GroupTransformerLayer",
    "MBConv",
    "MultiScaleLinearAttention",
    "ResBlock",
    "ResidualDepthwiseConv",
    "SelfAttention",
    "SwinBlock",
    "WindowAttention",
    "as_map",
    "as_output",
    "as_tokens",
    "checkpoint_module",
    "conv_norm_act",
    "relu_linear_attention",
    "sine_positions",
    "window_partition",
    "window_unpartition",
]
