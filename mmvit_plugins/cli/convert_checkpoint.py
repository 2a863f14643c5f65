"""Convert a checkpoint as its authors published it to the layout of MMPretrain, MMSegmentation or MMDetection."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from mmvit_plugins.environment import check_environment

from .arguments import make_parser
from .errors import UserError, run_tool
from .file_checks import check_checkpoint

__all__ = ["convert", "main"]

LAYOUTS = {"cls": "mmpretrain", "seg": "mmsegmentation", "det": "mmdetection"}
EXAMPLES = """examples:
  %(prog)s official.pth stvit_small_cls.pth --task cls      backbone, neck and head, for tools/test.py
  %(prog)s official.pth stvit_small_seg.pth --task seg      backbone alone, for load_from of a segmentor

Training needs no conversion: init_cfg=dict(type='mmvit_plugins.OfficialPretrained', checkpoint='official.pth')."""


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = make_parser("convert_checkpoint", __doc__ or "", EXAMPLES)
    parser.add_argument("source", help="the official file or its URL")
    parser.add_argument("out", help="the file to write")
    parser.add_argument(
        "--task",
        choices=tuple(LAYOUTS),
        default="cls",
        help="cls: MMPretrain (backbone, neck, head); seg: MMSegmentation, det: MMDetection (backbone) (%(default)s)",
    )
    parser.add_argument("--family", help="whose file it is, e.g. stvit (default: recognised by its keys)")
    return parser.parse_args(argv)


def convert(args: argparse.Namespace) -> int:
    """Convert one file and print how many of its tensors were written."""
    check_environment("mmengine", "mmcv")
    check_checkpoint(args.source)
    out = Path(args.out).absolute()
    if out.is_dir() or (out.exists() and os.path.exists(args.source) and os.path.samefile(out, args.source)):
        raise UserError(f"the output {out} is {'a folder' if out.is_dir() else 'the input'}; give another file name")
    import torch

    from mmvit_plugins.checkpoints import LAYOUTS as PARTS
    from mmvit_plugins.checkpoints import convert_official, read_state_dict
    from mmvit_plugins.version import __version__

    layout = LAYOUTS[args.task]
    official = read_state_dict(args.source)
    converted, family = convert_official(official, args.family)
    kept = {key: value for key, value in converted.items() if key.startswith(PARTS[layout])}
    if not kept:
        parts = ", ".join(PARTS[layout])
        raise UserError(f"0 of {len(official)} tensors of {args.source} belong to {parts} of {layout}")
    out.parent.mkdir(parents=True, exist_ok=True)
    meta = dict(family=family, layout=layout, source=os.path.basename(args.source), mmvit_plugins=__version__)
    torch.save(dict(meta=meta, state_dict=kept), out)
    print(f"{len(kept)} of {len(official)} tensors of {args.source} ({family}) converted to {layout} layout: {out}")
    left = sorted({key.partition(".")[0] for key in converted if key not in kept})
    if left:
        print(f"left out, because {layout} brings its own: {', '.join(left)} ({len(converted) - len(kept)} tensors)")
    if args.task != "cls":
        init = f"dict(type='Pretrained', checkpoint='{out}', prefix='backbone.')"
        print(f"use it as load_from='{out}', or as model.backbone.init_cfg={init}")
    return 0


def main(argv: list[str] | None = None) -> int:
    """``tools/convert_checkpoint.py``; returns the exit code."""
    return run_tool(convert, parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
