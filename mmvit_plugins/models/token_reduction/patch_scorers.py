"""What a quadtree of patches looks at: how much an image loses when a patch is seen at low resolution.

Source: Ronen, Levy, Golbert (arXiv 2304.00287). All scorers have one convention: the higher score is split first (the
authors' code has the signs the other way round). The image is blurred as a whole by resizing it down and up, bilinearly
and without antialiasing, as patches are resized to tokens; so the score measures what a token loses.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from logging import WARNING

import torch
import torch.nn.functional as F
from mmengine.logging import print_log
from mmengine.model import BaseModule
from torch import Tensor, nn

from mmvit_plugins.registry import MODELS
from mmvit_plugins.tensor_files import read_state_dict

__all__ = ["FeatureScorer", "PatchScorer", "PixelBlurScorer", "RandomScorer", "blur"]


def resize(image: Tensor, size: tuple[int, int]) -> Tensor:
    """(B, C, H, W) -> (B, C, *size), bilinear with half-pixel centres, without antialiasing."""
    if tuple(image.shape[-2:]) == tuple(size):
        return image
    return F.interpolate(image, size=size, mode="bilinear", align_corners=False)


def blur(image: Tensor, factor: int) -> Tensor:
    """(B, C, H, W) -> the same size, after a resize down by ``factor`` (a divisor of H and W) and up again."""
    height, width = int(image.shape[-2]), int(image.shape[-1])
    return resize(resize(image, (height // factor, width // factor)), (height, width))


class PatchScorer(BaseModule):
    """Scores the patches of an image. Works on what the backbone receives, that is on normalised images in a host."""

    @abstractmethod
    def score(self, image: Tensor, sizes: Sequence[int], smallest: int) -> list[Tensor]:
        """As :meth:`forward`, in float32 or float64 and without gradient."""

    @torch.no_grad()
    def forward(self, image: Tensor, sizes: Sequence[int], smallest: int) -> list[Tensor]:
        """Scores of all patches that can be split.

        Args:
            image: (B, C, H, W), H and W multiples of the largest size.
            sizes: sides of the patches in pixels, falling.
            smallest: side of the patches that are not split.

        Returns:
            For each size p a (B, H / p, W / p); the highest is split first.
        """
        with torch.autocast(image.device.type, enabled=False):
            return self.score(image.to(torch.promote_types(image.dtype, torch.float32)), sizes, smallest)


@MODELS.register_module()
class PixelBlurScorer(PatchScorer):
    """sqrt(mean squared error of the blurred image in the patch * side of the patch): the paper's baseline."""

    def score(self, image: Tensor, sizes: Sequence[int], smallest: int) -> list[Tensor]:
        """See the base class."""
        scores = []
        for size in sizes:
            error = (image - blur(image, size // smallest)).square()
            # Sums along rows first: several times faster than pooling with so large a kernel.
            batch, channels, height, width = (int(n) for n in error.shape)
            error = error.view(batch, channels, height, width // size, size).sum(dim=-1)
            error = error.view(batch, channels, height // size, size, width // size).sum(dim=(1, 3))
            scores.append((error / (channels * size)).sqrt())  # mean over C * size^2 values, times the size
        return scores


@MODELS.register_module()
class FeatureScorer(PatchScorer):
    """Squared difference of ShuffleNetV2 x0.5 features of the image and of its blurred form: the paper's main scorer.

    Mean over channels of the squared difference after the last convolution (stride 32), averaged over the patch; where
    patches are smaller than 32 pixels, the map is resized to the grid of patches. The network is torchvision's, frozen
    and in eval mode. Nothing is downloaded.

    Args:
        checkpoint: file with torchvision's ``shufflenet_v2_x0_5`` weights, read by ``init_weights()``; None: random
            features (a warning is logged), which still see where detail is lost, but are not the paper's.
        init_cfg: mmengine's initialisation config.
    """

    stride = 32
    parts = ("conv1", "maxpool", "stage2", "stage3", "stage4", "conv5")

    def __init__(self, checkpoint: str | None = None, init_cfg: dict | list[dict] | None = None) -> None:
        super().__init__(init_cfg=init_cfg)
        from torchvision.models import shufflenet_v2_x0_5

        network = shufflenet_v2_x0_5(weights=None)
        self.checkpoint = checkpoint
        self.network = nn.Sequential(*(getattr(network, part) for part in self.parts))
        self.network.requires_grad_(False)
        self.network.eval()

    def init_weights(self) -> None:
        """Read the checkpoint."""
        if self.checkpoint is None:
            print_log(
                "FeatureScorer without a checkpoint scores by random features. Give "
                "checkpoint=FILE with torchvision's shufflenet_v2_x0_5 weights.",
                "current",
                WARNING,
            )
            return
        # The names of the published file, whose parts are numbered in the Sequential; its classifier is not needed.
        state = read_state_dict(self.checkpoint)
        numbers = {part: str(i) for i, part in enumerate(self.parts)}
        renamed = {}
        for key, value in state.items():
            part, _, rest = key.partition(".")
            if part in numbers:
                renamed[f"{numbers[part]}.{rest}"] = value
        self.network.load_state_dict(renamed)

    def train(self, mode: bool = True) -> FeatureScorer:
        """Its network always stays in eval mode."""
        super().train(mode)
        self.network.eval()
        return self

    def score(self, image: Tensor, sizes: Sequence[int], smallest: int) -> list[Tensor]:
        """See the base class."""
        image = image.to(self.network[0][0].weight.dtype)
        sharp = self.network(image)
        scores = []
        for size in sizes:
            blurred = self.network(blur(image, size // smallest))
            error = (sharp - blurred).square().mean(dim=1, keepdim=True)
            scores.append(self._pool(error, image, size).squeeze(1))
        return scores

    def _pool(self, error: Tensor, image: Tensor, size: int) -> Tensor:
        """(B, 1, h, w) at stride 32 -> (B, 1, H / size, W / size)."""
        grid = (int(image.shape[-2]) // size, int(image.shape[-1]) // size)
        if size % self.stride == 0 and (int(error.shape[-2]), int(error.shape[-1])) == tuple(
            side * size // self.stride for side in grid
        ):
            return F.avg_pool2d(error, size // self.stride)
        return resize(error, grid)


@MODELS.register_module()
class RandomScorer(PatchScorer):
    """Random scores, the control of the paper's comparison.

    In training they come from PyTorch's global generator. In eval mode they are the same for every image and call, so
    that a prediction depends on nothing but the image.

    Args:
        seed: of the scores in eval mode.
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.seed = seed

    def score(self, image: Tensor, sizes: Sequence[int], smallest: int) -> list[Tensor]:
        """See the base class."""
        batch, _, height, width = (int(n) for n in image.shape)
        shapes = [(batch, height // size, width // size) for size in sizes]
        if self.training:
            return [torch.rand(shape, device=image.device) for shape in shapes]
        generator = torch.Generator().manual_seed(self.seed)
        return [
            torch.rand(shape[1:], generator=generator).to(image.device).expand(shape).contiguous() for shape in shapes
        ]
