"""Cost of models: parameters, MACs, FLOPs, latency, throughput and peak memory; ``tools/benchmark.py`` is its front."""

from .counting import count_flops
from .plots import fit_exponent, plot_accuracy, plot_costs
from .records import compare_rows, environment_of, read_report, write_report
from .settings import Setting
from .subject import Subject
from .timing import interleaved_seconds

__all__ = [
    "Setting",
    "Subject",
    "compare_rows",
    "count_flops",
    "environment_of",
    "fit_exponent",
    "interleaved_seconds",
    "plot_accuracy",
    "plot_costs",
    "read_report",
    "write_report",
]
