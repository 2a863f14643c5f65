"""Draw a contact sheet of the built-in scenes, with any of their annotations beside the images."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from .arguments import make_parser
from .errors import UserError, run_tool

__all__ = ["browse_scenes", "main"]

EXAMPLES = """examples:
  %(prog)s --out contact.png --num 24
  %(prog)s --out layers.png --num 6 --size 160 240 --layers rgb seg instances depth normals boundary
  %(prog)s --out crowd.png --split val --seed 7 --objects 6 10"""

LAYERS = ("rgb", "seg", "instances", "depth", "normals", "boundary", "saliency")


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = make_parser("browse_scenes", __doc__ or "", EXAMPLES)
    parser.add_argument("--out", default="scenes.png", metavar="FILE.png", help="the picture (%(default)s)")
    parser.add_argument("--num", type=int, default=24, help="number of scenes (%(default)s)")
    parser.add_argument("--start", type=int, default=0, help="number of the first scene (%(default)s)")
    parser.add_argument("--split", choices=("train", "val", "test"), default="train")
    parser.add_argument("--seed", type=int, default=0, help="another seed gives other scenes (%(default)s)")
    parser.add_argument("--size", type=int, nargs=2, default=(128, 128), metavar=("H", "W"), help="pixels (128 128)")
    parser.add_argument("--objects", type=int, nargs=2, default=(3, 6), metavar=("FEWEST", "MOST"), help="(3 6)")
    parser.add_argument("--layers", nargs="+", choices=LAYERS, default=["rgb"], help="what to show (rgb)")
    parser.add_argument("--columns", type=int, help="scenes in a row (chosen to fit)")
    parser.add_argument("--zoom", type=int, default=1, help="whole-number magnification (%(default)s)")
    return parser.parse_args(argv)


def browse_scenes(args: argparse.Namespace) -> int:
    """Render the scenes, write the sheet, and say where it is and how long rendering took."""
    import cv2

    from mmvit_plugins.datasets.scenes import render_scene
    from mmvit_plugins.datasets.scenes.pictures import contact_sheet

    out = Path(args.out)
    if out.suffix.lower() not in (".png", ".jpg", ".jpeg"):
        raise UserError(f"--out must name a .png or .jpg file, but got {args.out!r}")
    if min(args.num, args.zoom) < 1 or (args.columns is not None and args.columns < 1):
        raise UserError(
            f"--num, --zoom and --columns must be at least 1, but got {args.num}, {args.zoom} and {args.columns}"
        )
    began = time.perf_counter()
    scenes = [
        render_scene(args.seed, args.split, args.start + place, tuple(args.size), tuple(args.objects))
        for place in range(args.num)
    ]
    rate = len(scenes) / (time.perf_counter() - began)
    out.parent.mkdir(parents=True, exist_ok=True)
    sheet = contact_sheet(scenes, args.layers, args.columns, args.zoom)
    if not cv2.imwrite(str(out), sheet[..., ::-1]):
        raise UserError(f"could not write {out.resolve()}: is the folder writable?")
    print(f"{len(scenes)} scenes of {args.size[0]} x {args.size[1]}, {rate:.0f} rendered per second: {out.resolve()}")
    return 0


def main(argv: list[str] | None = None) -> int:
    """Entry point; see ``--help``."""
    return run_tool(browse_scenes, parse_args(argv))
