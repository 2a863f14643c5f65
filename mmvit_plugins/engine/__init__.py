"""Hooks, the optimiser wrapper and the runner that the tools use on top of mmengine's."""

from .batch_norm_reestimation_hook import BatchNormReestimationHook
from .checkpoint_report import report_match
from .console_progress_hook import ConsoleProgressHook
from .cpu_amp import CPUAmpOptimWrapper
from .damaged_files import DamagedFileError, check_whole_image, name_damaged_samples, reading_checkpoint
from .early_exit_hook import EarlyExitHook
from .label_check_hook import LabelCheckHook
from .prediction_pictures_hook import PredictionPicturesHook
from .random_input_size_hook import RandomInputSizeHook
from .runner import ReportingRunner
from .self_distillation_hook import SelfDistillationHook
from .sparsity_adaptation_hook import SparsityAdaptationHook
from .token_trimming_hook import TokenTrimmingHook

__all__ = [
    "BatchNormReestimationHook",
    "CPUAmpOptimWrapper",
    "ConsoleProgressHook",
    "DamagedFileError",
    "EarlyExitHook",
    "LabelCheckHook",
    "PredictionPicturesHook",
    "RandomInputSizeHook",
    "ReportingRunner",
    "SelfDistillationHook",
    "SparsityAdaptationHook",
    "TokenTrimmingHook",
    "check_whole_image",
    "name_damaged_samples",
    "reading_checkpoint",
    "report_match",
]
