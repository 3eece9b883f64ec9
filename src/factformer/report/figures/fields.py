"""Pictures of fields: prediction, truth and difference over time or on middle planes, and kernels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap
from matplotlib.figure import Figure

from factformer._support.axes import evenly_spaced
from factformer.errors import UserError
from factformer.grid import Grid
from factformer.report.planes import (
    Array,
    Component,
    Limits,
    Plane,
    axis_name,
    box_aspect,
    cell_edges,
    color_limits,
    difference_limits,
    middle_planes,
    picture_aspect,
    to_scale,
)
from factformer.report.samples import Rollout
from factformer.report.style import (
    INK,
    MUTED,
    RC_DARK,
    difference_map,
    diverging_map,
    literal,
    new_figure,
    sequential_map,
    series_color,
    styled,
)

Edges = tuple[Array, Array]
ROW_NAMES = ("Prediction", "Truth", "Difference")


@styled
def comparison(
    rollout: Rollout,
    component: Component,
    *,
    frames: Sequence[int] | None = None,
    plane: Plane | None = None,
    frame_dt: float | None = None,
    grid: Grid | None = None,
) -> Figure:
    """Rows prediction, truth and difference, columns over time; lines on a grid of one axis.

    ``frames`` are indices into the roll-out, five evenly spaced ones if not given. Prediction and truth share
    their limits, taken from the truth over all frames.
    """
    truth, prediction = rollout.truth[..., component.channel], rollout.prediction[..., component.channel]
    chosen = list(frames) if frames is not None else _spread(len(truth), 5)
    plane = plane or middle_planes(truth.shape[1:])[0]
    titles = [time_label(k, frame_dt) for k in chosen]
    if len(plane.axes) == 1:
        true, predicted = (plane.take(values)[chosen, 0] for values in (truth, prediction))
        x = line_points(truth.shape[1 + plane.axes[0]], grid, plane.axes[0])
        return _line_panels(true, predicted, titles, component.label, x, axis_name(plane.axes[0]))
    pictures = [plane.take(values)[chosen] for values in (prediction, truth)]
    return _panels(
        [list(column) for column in zip(*pictures, strict=True)],
        titles,
        [plane_edges(plane, truth.shape[1:], grid)] * len(chosen),
        color_limits(plane.take(truth)),
        component.label,
        [plane] * len(chosen),
    )


@styled
def middle_slices(rollout: Rollout, component: Component, *, frame: int = -1, grid: Grid | None = None) -> Figure:
    """Rows prediction, truth and difference of one frame, columns the planes through the middle."""
    truth, prediction = rollout.truth[..., component.channel], rollout.prediction[..., component.channel]
    shape = truth.shape[1:]
    planes = middle_planes(shape)
    coordinates = [grid.axis(m).tolist() for m in range(grid.num_axes)] if grid is not None else None
    columns = [[plane.take(values[[frame]])[0] for values in (prediction, truth)] for plane in planes]
    titles = [plane.label(coordinates).replace(" plane, ", "\n") for plane in planes]
    edges = [plane_edges(plane, shape, grid) for plane in planes]
    return _panels(columns, titles, edges, color_limits(truth[[frame]]), component.label, planes)


@styled
def kernel_maps(kernels: Mapping[str, Array], *, columns: int | None = None, dark: bool = False) -> Figure:
    """Kernel matrices by caption as heat maps, each divided by its largest magnitude, zero in the middle."""
    if not kernels:
        raise UserError("there are no kernels to draw: the model has no factorized attention")
    columns = columns or next((n for n in (4, 3) if len(kernels) % n == 0), min(4, len(kernels)))
    with matplotlib.rc_context(RC_DARK if dark else {}):
        return _kernel_grid(kernels, columns, diverging_map(dark=dark))


def _kernel_grid(kernels: Mapping[str, Array], columns: int, colors: Colormap) -> Figure:
    rows = math.ceil(len(kernels) / columns)
    figure = new_figure(2.15 * columns + 0.6, 2.3 * rows)
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes, (caption, kernel) in zip(grid.flat, kernels.items(), strict=False):
        scale = float(np.abs(kernel).max()) or 1.0
        image = axes.imshow(np.asarray(kernel) / scale, cmap=colors, vmin=-1, vmax=1)
        axes.set_title(literal(caption), fontsize=9)
        bare(axes)
    for axes in grid.flat[len(kernels) :]:
        axes.set_axis_off()
    bar = figure.colorbar(image, ax=grid, shrink=0.8 if rows > 1 else 0.95, aspect=25, ticks=[-1, 0, 1])
    bar.outline.set_visible(False)
    bar.set_label("kernel / largest magnitude")
    return figure


def field_map(limits: Limits) -> Colormap:
    """Diverging for fields that change sign, sequential otherwise."""
    return diverging_map() if limits.signed else sequential_map()


def _panels(
    columns: Sequence[Sequence[Array]],
    titles: Sequence[str],
    edges: Sequence[Edges],
    limits: Limits,
    label: str,
    planes: Sequence[Plane],
) -> Figure:
    """Columns of (prediction, truth) pictures with their difference below."""
    width, height = panel_size(edges, side=1.72, shortest=0.85)
    figure = new_figure(width * len(columns) + 1.1, 3 * height + 0.45)
    grid = figure.subplots(3, len(columns), squeeze=False)
    differences = [np.asarray(p, dtype=np.float64) - t for p, t in columns]
    shades = difference_limits(np.concatenate([d.ravel() for d in differences]))
    images = []
    for c, ((prediction, truth), difference) in enumerate(zip(columns, differences, strict=True)):
        for row, (values, scale, colors) in enumerate(
            [
                (prediction, limits, field_map(limits)),
                (truth, limits, field_map(limits)),
                (difference, shades, difference_map()),
            ]
        ):
            axes = grid[row, c]
            images.append(draw_plane(axes, values, edges[c], scale, colors))
            if row == 0:
                axes.set_title(titles[c])
            if c == 0:
                axes.set_ylabel(ROW_NAMES[row], fontsize=10)
    for c, plane in enumerate(planes):
        if c == 0 or plane != planes[c - 1]:
            arrows = f"{axis_name(plane.axes[0])} →, {axis_name(plane.axes[1])} ↑"
            grid[2, c].set_xlabel(arrows if to_scale(*edges[c]) else f"{arrows}\nnot to scale", fontsize=8, color=MUTED)
    below = "prediction − truth" if height > 1.4 else "prediction\n− truth"
    for rows, image, name in ((grid[:2], images[0], literal(label)), (grid[2:], images[2], below)):
        bar = figure.colorbar(image, ax=rows, aspect=30 if len(rows) > 1 else 15, pad=0.015)
        bar.outline.set_visible(False)
        bar.set_label(name)
    return figure


def _line_panels(
    truth: Array, prediction: Array, titles: Sequence[str], label: str, x: Array, name_of_axis: str
) -> Figure:
    figure = new_figure(1.95 * len(titles) + 0.8, 3.6)
    panels = figure.subplots(2, len(titles), squeeze=False, sharex=True, sharey="row")
    limits, shades = color_limits(truth), difference_limits(prediction - truth)
    margin = 0.08 * (limits.high - limits.low)
    for c, title in enumerate(titles):
        upper, lower = panels[:, c]
        upper.plot(x, truth[c], color=INK, linewidth=2.6, alpha=0.35, label="truth")
        upper.plot(x, prediction[c], color=series_color(0), linewidth=1.4, label="prediction")
        upper.set_title(title)
        upper.set_ylim(limits.low - margin, limits.high + margin)
        lower.plot(x, prediction[c] - truth[c], color=series_color(3), linewidth=1.4)
        lower.axhline(0, color=MUTED, linewidth=0.7)
        lower.set_ylim(1.1 * shades.low, 1.1 * shades.high)
        lower.set_xlabel(name_of_axis)
    panels[0, 0].set_ylabel(literal(label))
    panels[1, 0].set_ylabel("prediction − truth")
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside upper right", ncols=2)
    return figure


def bare(axes: Axes) -> None:
    """No ticks, grid or frame around a picture."""
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(False)
    for spine in axes.spines.values():
        spine.set_visible(False)


def draw_plane(axes: Axes, values: Array, edges: Edges, limits: Limits, colors: Colormap, smooth: bool = False) -> Any:
    """One picture ``(up, right)``: an image, or cells of their own sizes where points are unevenly spaced.

    Returns what matplotlib drew; ``set_array`` puts other values in. ``smooth`` interpolates between even points.
    """
    right, up = edges
    scale: dict[str, Any] = {"cmap": colors, "vmin": limits.low, "vmax": limits.high}
    drawn: Any
    if evenly_spaced(np.diff(right), right) and evenly_spaced(np.diff(up), up):
        extent = (right[0], right[-1], up[0], up[-1])
        kind = "bicubic" if smooth else "nearest"
        drawn = axes.imshow(values, origin="lower", extent=extent, interpolation=kind, **scale)
    else:
        drawn = axes.pcolormesh(right, up, values, **scale)
    axes.set_aspect(picture_aspect(right, up) / box_aspect(right, up))
    bare(axes)
    return drawn


def line_points(size: int, grid: Grid | None, axis: int = 0) -> Array:
    """Where the values along an axis lie; their numbers without a grid."""
    return grid.axis(axis).numpy() if grid is not None else np.arange(float(size))


def plane_edges(plane: Plane, shape: Sequence[int], grid: Grid | None) -> Edges:
    """Cell edges to the right and up of a plane, in physical lengths where the grid is known."""
    right, up = plane.axes
    return cell_edges(right, shape, grid), cell_edges(up, shape, grid)


def panel_size(edges: Sequence[Edges], side: float, shortest: float) -> tuple[float, float]:
    """Width and height in inches of a panel as long or flat as its planes, of area ``side`` squared.

    Flat boxes get wider instead of too low for their labels, tall ones narrower; no side is under ``shortest``.
    """
    aspect = max(picture_aspect(right, up) for right, up in edges)
    return max(side / math.sqrt(aspect), shortest), max(side * math.sqrt(aspect), shortest)


def _spread(count: int, wanted: int) -> list[int]:
    return sorted({round(k) for k in np.linspace(0, count - 1, min(count, wanted))})


def time_label(frame: int, frame_dt: float | None) -> str:
    """Frame 0 of a roll-out is one interval after the last known frame."""
    return f"t = {(frame + 1) * frame_dt:.4g}" if frame_dt is not None else f"frame {frame + 1}"
