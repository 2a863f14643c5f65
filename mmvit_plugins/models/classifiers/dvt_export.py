"""One ONNX graph for each exit, so that another runtime can stop early as well."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from mmvit_plugins.models.backbones.dvt import ExitState

__all__ = ["ExitStep", "export_exits"]


class ExitStep(nn.Module):
    """One exit as a function of tensors: images, and what the exit before left.

    In: images (B, 3, H, W), preprocessed; then, as far as this exit reuses them, ``features`` (B, N, C) and
    ``relation`` (B, L H, N, N) of the exit before. Out: probabilities (B, classes), then what the next exit reuses,
    in that order.

    Args:
        model: ``DVTClassifier`` in eval mode.
        number: exit, from 0.
        grid: tokens (h, w) of the exit before, at the image size of the graph.
    """

    def __init__(self, model: nn.Module, number: int, grid: tuple[int, int] | None) -> None:
        super().__init__()
        self.backbone, self.head = model.backbone, model.head.exits[number]
        self.number, self.grid = number, grid
        later = number < model.num_exits - 1
        self.inputs = ["images"] + [name for name in self._names() if number > 0]
        self.outputs = ["scores"] + [f"{name}_out" for name in self._names() if later]

    def _names(self) -> list[str]:
        used = dict(features=self.backbone.reuse_features, relation=self.backbone.reuse_relations)
        return [name for name, on in used.items() if on]

    def forward(self, images: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        """See the class."""
        upstream = None
        if self.number:
            given = dict(zip(self.inputs[1:], state, strict=True))
            upstream = ExitState(given.get("features"), given.get("relation"), self.grid)
        token, own = self.backbone.run_exit(self.number, images, upstream)
        left = [part for part in (own.features, own.relation) if part is not None]
        return (self.head((token,)).softmax(dim=-1), *left)


def export_exits(model: nn.Module, size: int | tuple[int, int], folder: str | Path, opset: int = 17) -> list[Path]:
    """Write ``exit1.onnx`` ... into a folder: fixed image size, any batch size.

    Run exit 1; of the samples whose largest score is below its threshold hand images, features and relation to exit 2,
    and so on.

    Args:
        model: ``DVTClassifier`` on the CPU.
        size: pixels, one number or (height, width).
        folder: made if it is not there.
        opset: version of ONNX's operators.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    height, width = (size, size) if isinstance(size, int) else size
    model = model.eval()
    arguments: tuple[Tensor, ...] = (torch.zeros(2, 3, height, width),)
    grid, paths = None, []
    for number in range(model.num_exits):
        step = ExitStep(model, number, grid).eval()
        names = [*step.inputs, *step.outputs]
        with torch.no_grad():
            torch.onnx.export(
                step,
                arguments,
                str(folder / f"exit{number + 1}.onnx"),
                input_names=step.inputs,
                output_names=step.outputs,
                dynamic_axes={name: {0: "batch"} for name in names},
                opset_version=opset,
                dynamo=False,
            )
            _, grid = model.backbone.exits[number].embed(arguments[0])
            arguments = (arguments[0], *step(*arguments)[1:])
        paths.append(folder / f"exit{number + 1}.onnx")
    return paths
