"""One number of each frame over time: the truth and what surrogates made of it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from factformer.report.planes import Array
from factformer.report.style import INK, literal, new_figure, series_color, styled


@styled
def numbers_over_time(
    curves: Mapping[str, Array], truth: Array, *, label: str, frame_dt: float | None = None
) -> Figure:
    """The truth wide and pale, a line for each surrogate; logarithmic where the truth is positive over decades."""
    figure = new_figure(5.6, 3.5)
    axes = figure.subplots()
    times = np.arange(1, len(truth) + 1) * (frame_dt or 1.0)
    axes.plot(times, truth, color=INK, linewidth=3, alpha=0.4, label="truth")
    for i, (name, values) in enumerate(curves.items()):
        axes.plot(times, values, color=series_color(i), label=literal(name))
    if truth.min() > 0 and truth.max() > 10 * truth.min():
        axes.set_yscale("log")
    axes.set_xlabel("frame" if frame_dt is None else "time after the last known frame")
    axes.set_ylabel(literal(label))
    axes.legend(loc="best")
    return figure
