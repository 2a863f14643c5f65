"""Pictures of token maps, predictions and training runs. Host libraries are imported when a picture needs them."""

from .bird_eye import draw_labels_from_above, draw_points_from_above
from .colors import distinct_colors
from .panel import draw_panel
from .predictions import draw_prediction
from .task_pictures import draw_task_map, draw_tasks
from .token_maps import STYLES, draw_token_regions, token_regions
from .training_curve import draw_training_curve, find_scalars, read_scalars
from .window_scores import draw_window_choice

__all__ = [
    "STYLES",
    "distinct_colors",
    "draw_labels_from_above",
    "draw_panel",
    "draw_points_from_above",
    "draw_prediction",
    "draw_task_map",
    "draw_tasks",
    "draw_token_regions",
    "draw_training_curve",
    "draw_window_choice",
    "find_scalars",
    "read_scalars",
    "token_regions",
]
