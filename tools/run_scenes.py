"""Train scenes configs of three tasks and compare them; see docs/scenes.md."""

import sys
from pathlib import Path

# The checkout in the place of this folder: the tools run without installation, and tools/test.py hides no other module.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from mmvit_plugins.cli.run_scenes import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
