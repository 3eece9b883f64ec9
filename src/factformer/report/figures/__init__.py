"""Every figure of the package, in one look: functions that return a figure and touch no global state."""

from factformer.report.figures.curves import (
    CostPoint,
    TrendLine,
    ablation_bars,
    cost_curves,
    energy_curves,
    error_against_cost,
    error_trend,
    errors_by_parameter,
    pareto,
    resolution_study,
    spectra,
)
from factformer.report.figures.fields import comparison, kernel_maps, middle_slices
from factformer.report.figures.numbers import numbers_over_time

__all__ = [
    "CostPoint",
    "TrendLine",
    "ablation_bars",
    "comparison",
    "cost_curves",
    "energy_curves",
    "error_against_cost",
    "error_trend",
    "errors_by_parameter",
    "kernel_maps",
    "middle_slices",
    "numbers_over_time",
    "pareto",
    "resolution_study",
    "spectra",
]
