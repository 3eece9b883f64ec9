"""Curves and bars: error trends, spectra, resolution studies, ablations, cost, and singular-value energy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter, ScalarFormatter

from factformer.errors import UserError
from factformer.report.planes import Array
from factformer.report.style import INK, MUTED, PROTOCOL_LABELS, line_style, literal, new_figure, series_color, styled


@dataclass(frozen=True)
class TrendLine:
    """Error per frame of one model under one protocol, with an optional standard error per frame.

    ``frame_dt`` is the time between its frames, where it is not that of the figure.
    """

    model: str
    errors: Sequence[float]
    protocol: str = "latent_marching"
    standard_errors: Sequence[float] | None = None
    frame_dt: float | None = None


@styled
def error_trend(
    lines: Sequence[TrendLine],
    *,
    field: str,
    frame_dt: float | None = None,
    persistence: Sequence[float] | None = None,
) -> Figure:
    """Error per frame; a colour for each model, dashed for autoregressive and solid for latent marching."""
    figure = new_figure(5.6, 3.5)
    axes = figure.subplots()
    models = list(dict.fromkeys(line.model for line in lines))
    several = len({line.protocol for line in lines}) > 1
    for line in lines:
        color = series_color(models.index(line.model))
        label = f"{line.model} {PROTOCOL_LABELS.get(line.protocol, line.protocol)}" if several else line.model
        time = _times(len(line.errors), frame_dt if line.frame_dt is None else line.frame_dt)
        axes.plot(time, line.errors, color=color, linestyle=line_style(line.protocol), label=literal(label))
        if line.standard_errors is not None:
            spread, middle = np.asarray(line.standard_errors), np.asarray(line.errors)
            axes.fill_between(time, middle - spread, middle + spread, color=color, alpha=0.15, linewidth=0)
    if persistence is not None:
        axes.plot(_times(len(persistence), frame_dt), persistence, color=MUTED, linestyle=":", label="persistence")
    axes.set_xlabel("frame" if frame_dt is None else "time after the last known frame")
    axes.set_ylabel(f"relative $L^2$ error of {literal(field)}")
    axes.set_ylim(bottom=0)
    if frame_dt is None:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _legend(axes, len(lines) + (persistence is not None))
    return figure


@styled
def spectra(
    wavenumber: Sequence[float],
    curves: Mapping[str, Sequence[float]],
    truth: Sequence[float],
    *,
    field: str,
    protocols: Mapping[str, str] | None = None,
    masked: bool = False,
) -> Figure:
    """Energy spectra on logarithmic axes, the truth in black; the mean (wavenumber 0) is left out.

    Those of a ``masked`` problem are of fields that are zero outside the domain.
    """
    figure = new_figure(5.2, 3.6)
    axes = figure.subplots()
    k = np.asarray(wavenumber, dtype=float)
    kept = k > 0
    axes.loglog(k[kept], np.asarray(truth)[kept], color=INK, linewidth=3, alpha=0.45, label="truth")
    for i, (name, values) in enumerate(curves.items()):
        style = line_style((protocols or {}).get(name, ""))
        axes.loglog(k[kept], np.asarray(values)[kept], color=series_color(i), linestyle=style, label=literal(name))
    axes.set_xlabel("wavenumber")
    axes.set_ylabel(f"energy spectrum of {literal(field)}" + ("\n(zero outside the domain)" if masked else ""))
    _legend(axes, len(curves) + 1)
    return figure


@styled
def errors_by_parameter(values: Sequence[float], errors: Mapping[str, Sequence[float]], *, name: str) -> Figure:
    """The error of each trajectory against one of its parameters, a colour for each field; logarithmic over decades."""
    figure = new_figure(5.2, 3.5)
    axes = figure.subplots()
    order = np.argsort(values, kind="stable")
    x = np.asarray(values, dtype=float)[order]
    for i, (field, found) in enumerate(errors.items()):
        y = np.asarray(found, dtype=float)[order]
        axes.plot(
            x, y, color=series_color(i), linestyle="", marker="osD^v<>p"[i % 8], markersize=5, label=literal(field)
        )
    if x.min() > 0 and x.max() > 10 * x.min():
        axes.set_xscale("log")
    axes.set_xlabel(literal(name))
    axes.set_ylabel("relative $L^2$ error of a trajectory")
    finite = [value for found in errors.values() for value in found if np.isfinite(value)]
    axes.set_ylim(0, 1.1 * max(finite) if finite and max(finite) > 0 else None)
    if len(errors) > 1:
        _legend(axes, len(errors))
    return figure


def _log_error_axes(axes: Axes, x_label: str, field: str, num_lines: int) -> None:
    axes.set_yscale("log")
    axes.set_xlabel(x_label)
    axes.set_ylabel(f"relative $L^2$ error of {literal(field)}")
    _legend(axes, num_lines)


@styled
def resolution_study(resolutions: Sequence[int], errors: Mapping[str, Sequence[float | None]], *, field: str) -> Figure:
    """Error against the number of points per axis; a model's missing resolutions are left out of its line."""
    figure = new_figure(5.2, 3.5)
    axes = figure.subplots()
    for i, (name, values) in enumerate(errors.items()):
        if len(values) != len(resolutions):
            raise UserError(f"{name!r} has {len(values)} errors for {len(resolutions)} resolutions")
        known = [(r, v) for r, v in zip(resolutions, values, strict=True) if v is not None]
        axes.plot(
            *zip(*known, strict=True),
            color=series_color(i),
            marker="osD^v<>p"[i % 8],
            markersize=5,
            label=literal(name),
        )
    _categorical_log(axes, resolutions)
    _log_error_axes(axes, "points per axis", field, len(errors))
    return figure


@styled
def ablation_bars(
    values: Mapping[str, float],
    *,
    setting: str,
    chosen: str | None = None,
    standard_errors: Mapping[str, float] | None = None,
) -> Figure:
    """Error for each value of one setting; the chosen one stands out, as in the paper's ablations."""
    if chosen is not None and chosen not in values:
        raise UserError(f"chosen value {chosen!r} is not among {list(values)}")
    figure = new_figure(1.0 + 0.85 * len(values), 3.2)
    axes = figure.subplots()
    colors = [series_color(1) if name == chosen else series_color(0) for name in values]
    spread = [standard_errors.get(name, np.nan) for name in values] if standard_errors is not None else None
    bars = axes.bar(
        [literal(name) for name in values],
        list(values.values()),
        color=colors,
        width=0.66,
        yerr=spread,
        capsize=3,
        error_kw={"ecolor": INK, "elinewidth": 1},
    )
    axes.bar_label(bars, fmt="%.3f", padding=3, fontsize=8.5)
    axes.set_xlabel(literal(setting))
    axes.set_ylabel("relative $L^2$ error")
    axes.grid(axis="x", visible=False)
    axes.margins(y=0.15)
    return figure


@styled
def cost_curves(
    sizes: Sequence[int],
    curves: Mapping[str, Sequence[float | None]],
    *,
    size_label: str,
    cost_label: str,
    logarithmic: bool = True,
) -> Figure:
    """Time or memory against a size; None means out of memory and is marked as such above the last point."""
    figure = new_figure(5.0, 3.4)
    axes = figure.subplots()
    known_costs = [v for values in curves.values() for v in values if v is not None]
    if not known_costs:
        raise UserError("every case ran out of memory: there is no cost to draw")
    ceiling = max(known_costs) * (1.6 if logarithmic else 1.12)
    for i, (name, values) in enumerate(curves.items()):
        known = [(s, v) for s, v in zip(sizes, values, strict=True) if v is not None]
        lost = [s for s, v in zip(sizes, values, strict=True) if v is None]
        color = series_color(i)
        axes.plot(
            [s for s, _ in known],
            [v for _, v in known],
            color=color,
            marker="osD^v<>p"[i % 8],
            markersize=5,
            label=literal(name),
        )
        if lost:
            axes.plot(
                lost,
                [ceiling] * len(lost),
                color=color,
                marker="x",
                markersize=7,
                markeredgewidth=2,
                linestyle="none",
                label=f"{literal(name)}: out of memory",
            )
    _categorical_log(axes, sizes)
    axes.set_yscale("log" if logarithmic else "linear")
    axes.set_xlabel(size_label)
    axes.set_ylabel(cost_label)
    _legend(axes, len(curves) + 1)
    return figure


@styled
def energy_curves(
    curves: Mapping[str, Array], *, threshold: float = 0.9, title: str = "", total: int | None = None
) -> Figure:
    """Cumulative singular-value energy against the fraction of singular values; a tick marks ``threshold``.

    ``curves`` hold the normalised cumulative sums b_k of the paper, ending at 1; ``total`` is the full number
    of singular values where a truncated decomposition kept fewer.
    """
    figure = new_figure(4.6, 3.4)
    axes = figure.subplots()
    for i, (name, values) in enumerate(curves.items()):
        energy = np.asarray(values, dtype=float)
        fraction = np.arange(1, len(energy) + 1) / (total or len(energy))
        reached = fraction[min(int(np.searchsorted(energy, threshold)), len(energy) - 1)]
        axes.plot(fraction, energy, color=series_color(i), label=f"{literal(name)}: {100 * reached:.3g} %")
        axes.plot([reached, reached], [0, threshold], color=series_color(i), linestyle=":", linewidth=1.1)
    axes.axhline(threshold, color=MUTED, linewidth=0.7)
    axes.set_xlim(0, None)
    axes.set_ylim(0, 1.03)
    axes.set_xlabel("fraction of singular values")
    axes.set_ylabel("cumulative energy")
    axes.set_title(literal(title, 80))
    axes.legend(loc="lower right", title=f"{100 * threshold:.0f} % reached at", title_fontsize=8.5)
    return figure


@dataclass(frozen=True)
class CostPoint:
    """One entry of a picture of error against cost."""

    name: str
    seconds: float
    error: float
    spread: float | None = None


@styled
def error_against_cost(points: Sequence[CostPoint], *, field: str) -> Figure:
    """Error against seconds per sequence; the line joins those that no other one beats in both."""
    figure = new_figure(5.6, 3.5)
    axes = figure.subplots()
    best: list[CostPoint] = []
    for point in sorted(points, key=lambda point: (point.seconds, point.error)):
        if not best or point.error < best[-1].error:
            best.append(point)
    axes.plot([p.seconds for p in best], [p.error for p in best], color=MUTED, linestyle=":", zorder=1)
    for index, point in enumerate(points):
        axes.errorbar(
            point.seconds,
            point.error,
            yerr=point.spread,
            fmt="o",
            color=series_color(index),
            capsize=3,
            label=literal(point.name),
        )
    axes.set_xscale("log")
    _log_error_axes(axes, "seconds per sequence", field, len(points))
    return figure


@styled
def pareto(
    curves: Mapping[str, Sequence[tuple[float, float, str]]], marks: Mapping[str, tuple[float, float]]
) -> Figure:
    """Seconds per simulated second against the error: lines of ``(error, seconds, label)`` points, and single marks.

    What lies to the lower left is better in both.
    """
    figure = new_figure(5.6, 3.8)
    axes = figure.subplots()
    for i, (name, points) in enumerate(curves.items()):
        ordered = sorted(points)
        errors, seconds = [point[0] for point in ordered], [point[1] for point in ordered]
        axes.loglog(errors, seconds, color=series_color(i + 1), marker="sD^v"[i % 4], markersize=5, label=literal(name))
        for error, second, label in ordered:
            axes.annotate(
                literal(label), (error, second), xytext=(4, 4), textcoords="offset points", fontsize=7.5, color=MUTED
            )
    for i, (name, (error, seconds_at)) in enumerate(marks.items()):
        style = {"color": series_color(0), "marker": "o*P"[i % 3], "markersize": 9, "linestyle": "none"}
        axes.loglog([error], [seconds_at], label=literal(name), **style)
    axes.set_xlabel("relative $L^2$ error")
    axes.set_ylabel("seconds per simulated second")
    _legend(axes, len(curves) + len(marks))
    return figure


def _times(count: int, frame_dt: float | None) -> Array:
    return np.asarray(np.arange(1, count + 1) * (1.0 if frame_dt is None else frame_dt))


def _categorical_log(axes: Axes, sizes: Sequence[int]) -> None:
    """A logarithmic axis whose ticks are exactly the sizes that were run."""
    axes.set_xscale("log")
    axes.set_xticks(list(sizes))
    axes.set_xlim(min(sizes) / 1.1, 1.1 * max(sizes))
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(axis="x", which="minor", bottom=False)


def _legend(axes: Axes, count: int) -> None:
    """Inside the axes while it is short, beside them otherwise."""
    if count > 5:
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    else:
        axes.legend(loc="best")
