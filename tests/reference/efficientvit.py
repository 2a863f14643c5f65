"""EfficientViT as plainly as the equations say: the oracle of the tests and the yardstick of the benchmark.

Names are those of the authors' state dicts, written from the keys of the golden manifests. NCHW, one operation after
the other, a row of ones below the values for the denominator, the N x N matrix where N is at most the head's width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["ReferenceClsHead", "ReferenceEfficientViT", "ReferenceModel", "ReferenceSegHead"]


class Conv(nn.Module):
    """Convolution, norm (eps > 0) or bias, activation."""

    def __init__(self, i: int, o: int, k: int, stride: int, groups: int, eps: float, act: nn.Module | None) -> None:
        super().__init__()
        self.conv = nn.Conv2d(i, o, k, stride, k // 2, groups=groups, bias=eps == 0)
        self.norm = nn.BatchNorm2d(o, eps=eps) if eps else nn.Identity()
        self.act = act or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.norm(self.conv(x)))


class Chain(nn.Module):
    """Named convolutions one after the other."""

    def __init__(self, **convs: Conv) -> None:
        super().__init__()
        for name, conv in convs.items():
            self.add_module(name, conv)

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.children():
            x = conv(x)
        return x


class Residual(nn.Module):
    """x + main(x), or main(x)."""

    def __init__(self, main: nn.Module, skip: bool) -> None:
        super().__init__()
        self.main, self.skip = main, skip

    def forward(self, x: Tensor) -> Tensor:
        return x + self.main(x) if self.skip else self.main(x)


class Ops(nn.Module):
    """Layers under the name that the authors give a sequence."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.op_list = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.op_list:
            x = layer(x)
        return x


def mbconv(i: int, o: int, stride: int, ratio: float, eps: float, act: nn.Module, fewer: bool, skip: bool) -> Residual:
    h, inner = round(i * ratio), 0.0 if fewer else eps
    return Residual(
        Chain(
            inverted_conv=Conv(i, h, 1, 1, 1, inner, act),
            depth_conv=Conv(h, h, 3, stride, h, inner, act),
            point_conv=Conv(h, o, 1, 1, 1, eps, None),
        ),
        skip,
    )


def fused(i: int, o: int, stride: int, ratio: float, eps: float, act: nn.Module, skip: bool) -> Residual:
    h = round(i * ratio)
    return Residual(
        Chain(spatial_conv=Conv(i, h, 3, stride, 1, eps, act), point_conv=Conv(h, o, 1, 1, 1, eps, None)), skip
    )


class LinearAttention(nn.Module):
    """q, k, v and their 5x5 aggregation, ReLU attention with a row of ones, projection."""

    def __init__(self, dim: int, d: int, eps: float) -> None:
        super().__init__()
        self.d = d
        self.qkv = Chain(conv=nn.Conv2d(dim, 3 * dim, 1, bias=False))
        depthwise = nn.Conv2d(3 * dim, 3 * dim, 5, padding=2, groups=3 * dim, bias=False)
        self.aggreg = nn.ModuleList(
            [nn.Sequential(depthwise, nn.Conv2d(3 * dim, 3 * dim, 1, groups=3 * dim // d, bias=False))]
        )
        self.proj = Conv(2 * dim, dim, 1, 1, 1, eps, None)

    def forward(self, x: Tensor) -> Tensor:
        batch, _, height, width = x.shape
        qkv = self.qkv(x)
        qkv = torch.cat([qkv, self.aggreg[0](qkv)], dim=1)
        q, k, v = qkv.reshape(batch, -1, 3 * self.d, height * width).chunk(3, dim=2)
        q, k = F.relu(q), F.relu(k)
        if height * width <= self.d:
            scores = k.transpose(2, 3) @ q
            out = v @ (scores / (scores.sum(dim=2, keepdim=True) + 1e-15))
        else:
            out = F.pad(v, (0, 0, 0, 1), value=1.0) @ k.transpose(2, 3) @ q
            out = out[:, :, :-1] / (out[:, :, -1:] + 1e-15)
        return self.proj(out.reshape(batch, -1, height, width))


class Attention(nn.Module):
    """Attention and MBConv, both with a skip."""

    def __init__(self, dim: int, d: int, ratio: float, eps: float, act: nn.Module) -> None:
        super().__init__()
        self.context_module = Residual(LinearAttention(dim, d, eps), True)
        self.local_module = mbconv(dim, dim, 1, ratio, eps, act, True, True)

    def forward(self, x: Tensor) -> Tensor:
        return self.local_module(self.context_module(x))


class ReferenceEfficientViT(nn.Module):
    """The backbone; ``forward_maps`` returns the stem and the four stages."""

    def __init__(self, series: str, widths: tuple[int, ...], depths: tuple[int, ...], head_dim: int) -> None:
        super().__init__()
        w, large = widths, series == "l"
        act = nn.GELU(approximate="tanh") if large else nn.Hardswish()
        eps = 1e-7 if large else 1e-5
        stem: list[nn.Module] = [Conv(3, w[0], 3, 2, 1, eps, act)]
        for _ in range(depths[0]):
            if large:
                block = Chain(conv1=Conv(w[0], w[0], 3, 1, 1, eps, act), conv2=Conv(w[0], w[0], 3, 1, 1, eps, None))
            else:
                block = Chain(
                    depth_conv=Conv(w[0], w[0], 3, 1, w[0], eps, act), point_conv=Conv(w[0], w[0], 1, 1, 1, eps, None)
                )
            stem.append(Residual(block, True))
        stages = []
        for i in range(1, 5):
            if large and i < 3:
                blocks = [fused(w[i - 1], w[i], 2, 16, eps, act, False)]
                blocks += [fused(w[i], w[i], 1, 4, eps, act, True) for _ in range(depths[i])]
            elif large and i == 3:
                blocks = [mbconv(w[i - 1], w[i], 2, 16, eps, act, True, False)]
                blocks += [mbconv(w[i], w[i], 1, 4, eps, act, True, True) for _ in range(depths[i])]
            elif i < 3:
                blocks = [mbconv(w[i - 1], w[i], 2, 4, eps, act, False, False)]
                blocks += [mbconv(w[i], w[i], 1, 4, eps, act, False, True) for _ in range(depths[i] - 1)]
            else:
                blocks = [mbconv(w[i - 1], w[i], 2, 24 if large else 4, eps, act, True, False)]
                blocks += [Attention(w[i], head_dim, 6 if large else 4, eps, act) for _ in range(depths[i])]
            stages.append(Ops(*blocks))
        if large:
            self.stages = nn.ModuleList([Ops(*stem), *stages])
        else:
            self.input_stem, self.stages = Ops(*stem), nn.ModuleList(stages)

    def forward_maps(self, x: Tensor) -> list[Tensor]:
        """(B, 3, H, W) -> maps at strides 2, 4, 8, 16, 32."""
        maps = []
        for stage in [self.input_stem, *self.stages] if hasattr(self, "input_stem") else self.stages:
            x = stage(x)
            maps.append(x)
        return maps


class Linear(nn.Module):
    """Linear layer with the names of the authors."""

    def __init__(self, i: int, o: int, eps: float, act: nn.Module | None) -> None:
        super().__init__()
        self.linear = nn.Linear(i, o, bias=eps == 0)
        self.norm = nn.LayerNorm(o, eps=eps) if eps else nn.Identity()
        self.act = act or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.norm(self.linear(x)))


class ReferenceClsHead(Ops):
    """1x1 convolution, pool, linear with norm, linear."""

    def __init__(self, dim: int, widths: tuple[int, int], classes: int, eps: float, act: nn.Module) -> None:
        pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        super().__init__(
            Conv(dim, widths[0], 1, 1, 1, eps, act),
            pool,
            Linear(*widths, eps, act),
            Linear(widths[1], classes, 0, None),
        )

    def forward(self, maps: list[Tensor]) -> Tensor:
        return super().forward(maps[-1])


class ReferenceSegHead(nn.Module):
    """1x1 convolutions, bicubic upsampling to stride 8, sum, bottlenecks, classifier."""

    def __init__(
        self, dims: tuple[int, int, int], width: int, depth: int, ratio: float, final: float, classes: int, large: bool
    ) -> None:
        super().__init__()
        act = nn.GELU(approximate="tanh") if large else nn.Hardswish()
        eps = 1e-7 if large else 1e-5
        inputs = [Conv(dim, width, 1, 1, 1, eps, None) for dim in reversed(dims)]
        self.input_ops = nn.ModuleList([Ops(inputs[0]), Ops(inputs[1]), inputs[2]])
        block = (
            (lambda: fused(width, width, 1, ratio, eps, act, True))
            if large
            else (lambda: mbconv(width, width, 1, ratio, eps, act, False, True))
        )
        self.middle = Ops(*(block() for _ in range(depth)))
        expand = [Conv(width, round(width * final), 1, 1, 1, eps, act)] if final != 1 else []
        self.output_ops = nn.ModuleList([Ops(*expand, Conv(round(width * final), classes, 1, 1, 1, 0, None))])

    def forward(self, maps: list[Tensor]) -> Tensor:
        """Five maps of an image with sides that are multiples of 32 -> logits at stride 8."""
        deep, middle, shallow = (op(x) for op, x in zip(self.input_ops, reversed(maps[2:]), strict=True))
        up = dict(mode="bicubic", align_corners=False)
        x = F.interpolate(deep, scale_factor=4, **up) + (F.interpolate(middle, scale_factor=2, **up) + shallow)
        return self.output_ops[0](self.middle(x))


class ReferenceModel(nn.Module):
    """Backbone and head, with the state dict of an official file."""

    def __init__(self, backbone: ReferenceEfficientViT, head: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3, H, W) -> logits."""
        return self.head(self.backbone.forward_maps(x))
