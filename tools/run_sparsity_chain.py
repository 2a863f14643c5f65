"""Adapt, search and fine-tune SparseViT on built-in scenes; see `python tools/run_sparsity_chain.py --help`."""

import sys
from pathlib import Path

# The checkout in the place of this folder: the tools run without installation, and this file hides no other module.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from mmvit_plugins.cli.run_sparsity_chain import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
