"""The authors' Context Cluster checkpoints to ours."""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor

from mmvit_plugins.key_rules import KeyRule, apply_rules, squeeze_1x1

__all__ = ["CONTEXT_CLUSTER_SIGNATURE", "convert_context_cluster"]

# A key that every official Context Cluster file has and no other family.
CONTEXT_CLUSTER_SIGNATURE = r"network\.\d+\.\d+\.token_mixer\.sim_alpha"


def _downsample(match: re.Match[str]) -> str:
    """The authors number blocks 0, 2, 4, 6 and the convolutions between them 1, 3, 5."""
    return f"backbone.stages.{(int(match[1]) + 1) // 2}.downsample.{match[2]}"


def _block(match: re.Match[str]) -> str:
    names = {
        "token_mixer.sim_alpha": "mixing.clusters.alpha",
        "token_mixer.sim_beta": "mixing.clusters.beta",
        "layer_scale_1": "gamma1",
        "layer_scale_2": "gamma2",
    }
    rest = names.get(match[3], match[3].replace("token_mixer.", "mixing.").replace("mlp.", ""))
    return f"backbone.stages.{int(match[1]) // 2}.blocks.{match[2]}.{rest}"


def _output_norm(match: re.Match[str]) -> str:
    """Dense models: one norm behind each of the blocks 0, 2, 4, 6."""
    return f"backbone.norms.{int(match[1]) // 2}.{match[2]}"


_AFFINE = r"(?:weight|bias)"
_IN_BLOCK = (
    rf"layer_scale_[12]|norm[12]\.{_AFFINE}|token_mixer\.sim_(?:alpha|beta)|token_mixer\.(?:f|v|proj)\.{_AFFINE}|"
    rf"mlp\.fc[12]\.{_AFFINE}"
)
RULES: list[KeyRule] = [
    (rf"patch_embed\.proj\.({_AFFINE})", r"backbone.stem.\1", None),
    (rf"network\.([135])\.proj\.({_AFFINE})", _downsample, None),
    (rf"network\.([0246])\.(\d+)\.({_IN_BLOCK})", _block, squeeze_1x1),
    (rf"norm([0246])\.({_AFFINE})", _output_norm, None),
    (rf"norm\.({_AFFINE})", r"backbone.norms.3.\1", None),
    (rf"head\.({_AFFINE})", r"head.fc.\1", None),
]


def convert_context_cluster(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Official Context Cluster state dict, of a classifier or dense -> MMPretrain layout (``backbone.``, ``head.fc.``).

    A classifier's one norm becomes that of the last stage. Pure and total.

    Raises:
        ValueError: a key that official Context Cluster checkpoints do not have.
    """
    return apply_rules(state, RULES, "Context Cluster")
