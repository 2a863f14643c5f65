"""Cost of models: parameters, MACs, FLOPs, latency, throughput and peak memory; ``tools/benchmark.py`` is its front."""

from .accuracy import accuracy_points, read_accuracies
from .counting import count_flops
from .measuring import Failure, Procedure, measure
from .plots import fit_exponent, plot_accuracy, plot_costs
from .provenance import check_kept_rows, source_of
from .records import compare_rows, environment_of, read_report, write_report
from .settings import Setting
from .subject import Subject
from .tables import print_ratios, print_table
from .timing import interleaved_seconds

__all__ = [
    "Failure",
    "Procedure",
    "Setting",
    "Subject",
    "accuracy_points",
    "check_kept_rows",
    "compare_rows",
    "count_flops",
    "environment_of",
    "fit_exponent",
    "interleaved_seconds",
    "measure",
    "plot_accuracy",
    "plot_costs",
    "print_ratios",
    "print_table",
    "read_accuracies",
    "read_report",
    "source_of",
    "write_report",
]
