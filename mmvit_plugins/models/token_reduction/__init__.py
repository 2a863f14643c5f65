"""One file for each way of grouping tokens, all of them giving a :class:`TokenMap`."""

from .base import TokenReducer
from .clusters import ContextClusters
from .equal_groups import EqualGroups, serpentine_keys
from .informative_tokens import InformativeTokens
from .merge_map import MergeMap, merge, merge_weighted
from .merge_schedule import merge_schedule
from .mixed_scale import FixedGate, MixedScaleMap, MixedScales, PatchGate, RandomGate
from .patch_scorers import FeatureScorer, PatchScorer, PixelBlurScorer, RandomScorer
from .perceiver import DenseMap, PerceiverLatents
from .quadtree import Quadtree, QuadtreeReducer, build_quadtree, legal_budget
from .regions import Regions
from .selection_map import SelectionMap
from .super_tokens import SuperTokenMap, SuperTokens
from .token_map import TokenMap
from .tome import (
    TokenMerging,
    bipartite_soft_matching,
    grid_soft_matching,
    kth_bipartite_soft_matching,
    threshold_matching,
)
from .window_pruning import WindowPruning
from .window_tome import WindowTokenMerging

__all__ = [
    "ContextClusters",
    "DenseMap",
    "EqualGroups",
    "FeatureScorer",
    "FixedGate",
    "InformativeTokens",
    "MergeMap",
    "MixedScaleMap",
    "MixedScales",
    "PatchGate",
    "PatchScorer",
    "PerceiverLatents",
    "PixelBlurScorer",
    "Quadtree",
    "QuadtreeReducer",
    "RandomGate",
    "RandomScorer",
    "Regions",
    "SelectionMap",
    "SuperTokenMap",
    "SuperTokens",
    "TokenMap",
    "TokenMerging",
    "TokenReducer",
    "WindowPruning",
    "WindowTokenMerging",
    "bipartite_soft_matching",
    "build_quadtree",
    "grid_soft_matching",
    "kth_bipartite_soft_matching",
    "legal_budget",
    "merge",
    "merge_schedule",
    "merge_weighted",
    "serpentine_keys",
    "threshold_matching",
]
