"""Segment point clouds from above; see docs/flatformer.md."""

import sys
from pathlib import Path

# The checkout in the place of this folder: the tools run without installation, and tools/test.py hides no other module.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from mmvit_plugins.cli.predict_points import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
