"""Find exit thresholds of a cascade for a budget; see `python tools/search_exits.py --help` and docs/tools.md."""

import sys
from pathlib import Path

# The checkout in the place of this folder: the tools run without installation, and this file hides no other module.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from mmvit_plugins.cli.search_exits import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
