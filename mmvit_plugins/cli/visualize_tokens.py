"""Draw which tokens of an image a backbone or a neck groups, as coloured regions with borders, stage by stage."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmvit_plugins.environment import check_environment

from .arguments import make_parser
from .config_loading import load_config
from .errors import UserError, run_tool
from .file_checks import check_checkpoint
from .inference import Predictor, choose_device, collect_images, output_stems, quiet_hosts, read_image

if TYPE_CHECKING:
    import numpy as np
    from torch import nn

    from mmvit_plugins.models.token_reduction import TokenMap

__all__ = ["Normalisation", "build_backbone", "draw_stages", "main", "visualize"]

EXAMPLES = """examples:
  %(prog)s photo.jpg --arch small --checkpoint stvit_small_official.pth
  %(prog)s photo.jpg --config configs/stvit/upernet_scenes.py --checkpoint work_dirs/demo/iter_650.pth
  %(prog)s photo.jpg                 random weights: the regions follow little more than the grid
  %(prog)s                           a built-in scene
  %(prog)s --compare stvit/upernet_scenes=stvit.pth tome/upernet_scenes@6    one picture of each, side by side
  %(prog)s --config token_reduction_neck/upernet_scenes --part neck          what its token-reduction neck groups

written to --out-dir (default: token_pictures):
  NAME_tokens.png     the image and all stages side by side
  NAME_stage1.png     one stage, pixel by pixel
  NAME_neck_...png    with --part neck
  NAME_methods.png    with --compare"""


class Normalisation:
    """From (H, W, 3) uint8 RGB to the (1, 3, H, W) input of a backbone.

    Args:
        mean: per channel, in 0..255, in the order of the model's channels; default ImageNet's.
        std: likewise.
        rgb: whether the model takes RGB; otherwise BGR.
    """

    def __init__(
        self,
        mean: tuple[float, ...] = (123.675, 116.28, 103.53),
        std: tuple[float, ...] = (58.395, 57.12, 57.375),
        rgb: bool = True,
    ) -> None:
        self.mean, self.std, self.rgb = mean, std, rgb

    @staticmethod
    def of_config(preprocessor: dict[str, Any] | None) -> Normalisation:
        """What the ``data_preprocessor`` of a config does; loaders of all hosts give BGR."""
        settings = preprocessor or {}
        if not settings.get("mean"):
            return Normalisation()
        rgb = bool(settings.get("bgr_to_rgb") or settings.get("to_rgb"))
        return Normalisation(tuple(settings["mean"]), tuple(settings["std"]), rgb)

    def __call__(self, image: np.ndarray) -> Any:
        import torch

        pixels = torch.from_numpy((image if self.rgb else image[..., ::-1]).copy()).permute(2, 0, 1).float()
        return ((pixels - torch.tensor(self.mean).view(3, 1, 1)) / torch.tensor(self.std).view(3, 1, 1)).unsqueeze(0)


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = make_parser("visualize_tokens", __doc__ or "", EXAMPLES)
    parser.add_argument("images", nargs="*", metavar="IMAGE_OR_FOLDER", help="without any: a built-in scene")
    parser.add_argument("--config", help="a config of any task; its backbone is drawn")
    parser.add_argument(
        "--part",
        choices=("backbone", "neck"),
        default="backbone",
        help="whose tokens: the backbone's, or those of the TokenReductionNeck of the config (%(default)s)",
    )
    parser.add_argument("--checkpoint", help="weights: of the config, or official ones of --arch; default: random")
    parser.add_argument("--backbone", default="STViT", help="a backbone of ours, without --config (%(default)s)")
    parser.add_argument("--arch", default="small", help="its variant, without --config (%(default)s)")
    parser.add_argument(
        "--compare",
        nargs="+",
        metavar="CONFIG[=CHECKPOINT][@STAGE]",
        help="several configs in one picture, each with one stage (default: its first that groups tokens)",
    )
    parser.add_argument(
        "--stages", type=int, nargs="+", metavar="N", help="stages or levels from 1; default: all that group"
    )
    parser.add_argument(
        "--style",
        choices=("mean", "distinct"),
        default="mean",
        help="average colour of each region, or distinct colours (%(default)s)",
    )
    parser.add_argument("--size", type=int, nargs=2, metavar=("H", "W"), help="resize first; default: as the image is")
    parser.add_argument("--scale", type=int, help="pixels of the picture for each of the image (default: by its size)")
    parser.add_argument("--no-borders", action="store_true", help="only the colours")
    parser.add_argument("--out-dir", default="token_pictures", metavar="DIR")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of random weights (%(default)s)")
    parser.add_argument("--cfg-options", nargs="+", default=[], metavar="KEY=VALUE", help="change the config")
    return parser.parse_args(argv)


def build_backbone(args: argparse.Namespace) -> tuple[nn.Module, Normalisation, str]:
    """What is drawn, in eval mode on its device, how its input is normalised, and where its weights come from.

    Returns:
        First the backbone, or with ``--part neck`` a :class:`NeckTokens` of it and the config's necks.

    Raises:
        UserError: the backbone is unknown, it has no token maps, or none of the necks has.
    """
    import torch

    torch.manual_seed(args.seed)
    device = choose_device(args.device)
    if args.config:
        backbone, normalise, source = _from_config(args, device)
    elif args.part == "neck":
        raise UserError("--part neck needs --config (or --compare): a neck belongs to a whole model")
    else:
        config = dict(type=f"mmvit_plugins.{args.backbone}", arch=args.arch)
        if args.checkpoint:
            config["init_cfg"] = dict(type="mmvit_plugins.OfficialPretrained", checkpoint=args.checkpoint)
        backbone, normalise, source = _build(config, None), Normalisation(), args.checkpoint or "random weights"
    if not hasattr(backbone, "token_maps"):
        hint = "; --part neck draws a TokenReductionNeck, if the config has one" if args.config else ""
        raise UserError(f"{type(backbone).__name__} has no token_maps(): it groups no tokens that could be drawn{hint}")
    return backbone.to(device).eval(), normalise, source


def _from_config(args: argparse.Namespace, device: str) -> tuple[nn.Module, Normalisation, str]:
    """:func:`build_backbone` of ``--config``."""
    from mmvit_plugins.visualization.neck_tokens import NeckTokens, list_necks

    cfg, wants_neck = load_config(args), args.part == "neck"
    if args.checkpoint:
        predictor = Predictor(cfg, args.checkpoint, device)
        part, source = predictor.model.backbone, predictor.report
        necks = list_necks(getattr(predictor.model, "neck", None)) if wants_neck else []
    else:
        scope, configs = cfg.get("default_scope"), cfg.model.get("neck") or []
        part, source = _build(dict(cfg.model.backbone, init_cfg=None), scope), "random weights"
        configs = [configs] if isinstance(configs, Mapping) else configs
        necks = [_build(dict(config), scope) for config in configs] if wants_neck else []
    if wants_neck:
        try:
            part = NeckTokens(part, necks)
        except ValueError as error:
            raise UserError(
                f"--part neck: config {args.config}: {error}. Take one such as token_reduction_neck/upernet_scenes, or "
                "leave out --part neck for its backbone"
            ) from error
    return part, Normalisation.of_config(cfg.model.get("data_preprocessor") or cfg.get("data_preprocessor")), source


def _build(config: dict, scope: str | None) -> nn.Module:
    from mmengine.registry import MODELS, init_default_scope

    if scope:
        init_default_scope(scope)
    backbone = MODELS.build(config)
    backbone.init_weights()
    return backbone


def draw_stages(
    backbone: nn.Module, image: np.ndarray, normalise: Normalisation, style: str, scale: int, borders: bool = True
) -> Iterator[tuple[int, str, np.ndarray]]:
    """Draw the token maps of every stage that has some; of every level, for a :class:`NeckTokens`.

    Yields:
        Number of the stage or level from 1, a title, and the (H * scale, W * scale, 3) uint8 picture.
    """
    from mmvit_plugins.visualization import draw_token_regions

    device = next(backbone.parameters()).device
    strides = dict(zip(backbone.out_indices, backbone.out_strides, strict=True))
    names = getattr(backbone, "reduced_names", {})
    for stage, token_map, grid, cells in backbone.token_maps(normalise(image).to(device)):
        border = (255, 255, 255) if borders else None
        picture = draw_token_regions(image, token_map, grid, style, strides.get(stage), scale, border)
        what = names.get(stage) or getattr(backbone, "reduced_name", "super tokens")
        title = (
            f"{_part_name(backbone)} {stage + 1}: {_how_many(token_map, cells)} {what} of {grid[0]} x {grid[1]} tokens"
        )
        yield stage + 1, title, picture


def _part_name(backbone: nn.Module) -> str:
    """What its maps belong to: "stage", or "neck level"."""
    return getattr(backbone, "part_name", "stage")


def _how_many(token_map: TokenMap, cells: tuple[int, int]) -> str:
    """The reduced tokens that have members, of a grid "12 x 15" if they form one (kept windows and leaves do not)."""
    count, grid = int((token_map.mass()[0] > 0).sum()), f"{cells[0]} x {cells[1]}"
    if min(cells) == 1 or token_map.num != cells[0] * cells[1]:
        return str(count)
    return grid if count == token_map.num else f"{count} of {grid}"


def _inputs(args: argparse.Namespace) -> list[tuple[Path | None, Path]]:
    """(image file or None for a built-in scene, stem of the outputs) each."""
    if not args.images:
        return [(None, Path("scene"))]
    images = collect_images(args.images)
    return list(zip(images, output_stems(images), strict=True))


def _load(path: Path | None, size: list[int] | None) -> np.ndarray:
    import cv2

    if path is None:
        from mmvit_plugins.datasets import ScenesSegDataset

        return ScenesSegDataset(split="val", num_scenes=1, size=tuple(size or (224, 224))).scene(0).rgb
    image = read_image(path)
    return image if size is None else cv2.resize(image, (size[1], size[0]), interpolation=cv2.INTER_AREA)


def _compared(spec: str, args: argparse.Namespace) -> tuple[nn.Module, Normalisation, int | None]:
    """The backbone of ``CONFIG[=CHECKPOINT][@STAGE]``, its normalisation and the stage."""
    rest, _, stage = spec.rpartition("@") if "@" in spec else (spec, "", "")
    if stage and not (stage.isdigit() and int(stage) >= 1):
        raise UserError(f"--compare: what follows the @ must be the number of a stage from 1, got {spec!r}")
    config, _, checkpoint = rest.partition("=")
    if checkpoint:
        check_checkpoint(checkpoint)
    chosen = argparse.Namespace(**{**vars(args), "config": config, "checkpoint": checkpoint or None})
    with quiet_hosts():
        backbone, normalise, source = build_backbone(chosen)
    print(f"{config}: {source}")
    return backbone, normalise, int(stage) if stage else None


def _draw_methods(models: list[Any], image: np.ndarray, scale: int, args: argparse.Namespace) -> list[Any]:
    """(title, picture) of each model of ``--compare``.

    Raises:
        UserError: a model has no such stage.
    """
    panel = []
    for spec, (backbone, normalise, wanted) in zip(args.compare, models, strict=True):
        stages = {n: (t, p) for n, t, p in draw_stages(backbone, image, normalise, args.style, scale)}
        number = next(iter(stages), None) if wanted is None else wanted
        if number not in stages:
            part, which = _part_name(backbone), wanted or "of any number"
            raise UserError(f"{spec}: no tokens are grouped in {part} {which}; in {sorted(stages)}")
        title, picture = stages[number]
        # All necks are of one class, so that their configs tell them apart.
        name = "/".join(Path(spec.partition("=")[0].partition("@")[0].removesuffix(".py")).parts[-2:])
        panel.append((f"{name if args.part == 'neck' else type(backbone).__name__}\n{title}", picture))
    return panel


def visualize(args: argparse.Namespace) -> int:
    """Draw every image; 1 if some could not be read."""
    check_environment("mmengine", "mmcv")
    if args.checkpoint:
        check_checkpoint(args.checkpoint)
    if args.size and min(args.size) < 1:
        raise UserError(f"--size takes a height and a width of at least 1, got {args.size}")
    inputs = _inputs(args)
    if args.compare:
        models = [_compared(spec, args) for spec in args.compare]
    else:
        with quiet_hosts():
            backbone, normalise, source = build_backbone(args)
        drawn = f"necks of {args.config}" if args.part == "neck" else type(backbone).__name__
        print(f"{drawn}: {source}")
    import mmcv

    from mmvit_plugins.engine import DamagedFileError
    from mmvit_plugins.visualization import draw_panel

    out_dir, failures = Path(args.out_dir).absolute(), 0
    for path, stem in inputs:
        try:
            image = _load(path, args.size)
        except DamagedFileError as error:
            failures += 1
            print(f"error: {error}", file=sys.stderr)
            continue
        scale = args.scale or max(1, round(640 / max(image.shape[:2])))
        panel = [(f"{stem.name}: {image.shape[0]} x {image.shape[1]}", image)]
        if args.compare:
            panel += _draw_methods(models, image, scale, args)
            print(f"wrote {draw_panel(panel, out_dir / stem.with_name(f'{stem.name}_methods.png'), columns=4)}")
            continue
        for number, title, picture in draw_stages(backbone, image, normalise, args.style, scale, not args.no_borders):
            if args.stages is None or number in args.stages:
                file = stem.with_name(f"{stem.name}_{_part_name(backbone).replace(' ', '_')}{number}.png")
                mmcv.imwrite(picture[..., ::-1], str(out_dir / file))
                panel.append((title, picture))
        if len(panel) == 1:
            part, which = _part_name(backbone), args.stages or "of any number"
            raise UserError(f"nothing to draw: {drawn} groups no tokens in {part}s {which}")
        name = f"{stem.name}_{'neck_' if args.part == 'neck' else ''}tokens.png"
        print(f"wrote {draw_panel(panel, out_dir / stem.with_name(name))}")
    return 1 if failures else 0


def main(argv: list[str] | None = None) -> int:
    """``tools/visualize_tokens.py``; returns the exit code."""
    return run_tool(visualize, parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
