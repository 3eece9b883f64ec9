"""Animated GIF of a roll-out: truth, prediction and difference, or the prediction alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import Colormap
from matplotlib.figure import Figure
from PIL import Image

from factformer._support.files import whole_file
from factformer.errors import UserError
from factformer.grid import Grid
from factformer.report.figures.fields import (
    Edges,
    draw_plane,
    field_map,
    line_points,
    panel_size,
    plane_edges,
    time_label,
)
from factformer.report.planes import (
    Array,
    Component,
    Limits,
    Plane,
    axis_name,
    color_limits,
    difference_limits,
    middle_planes,
)
from factformer.report.style import difference_map, literal, new_figure, series_color, styled


def write_animation(
    path: str | Path,
    prediction: Array,
    truth: Array | None = None,
    *,
    component: Component,
    plane: Plane | None = None,
    grid: Grid | None = None,
    frame_dt: float | None = None,
    frames_per_second: float = 8.0,
    overwrite: bool = False,
) -> Path:
    """Write a GIF of one component of ``prediction`` and of ``truth``, both ``(frame, *grid, channel)``."""
    path = Path(path)
    if path.suffix.lower() != ".gif":
        raise UserError(f"animations are written as GIF; give {path.name!r} the ending .gif")
    if path.exists() and not overwrite:
        raise UserError(f"{path} exists; pass --overwrite to replace it or give another name")
    if truth is not None and truth.shape != prediction.shape:
        raise UserError(f"truth {truth.shape} and prediction {prediction.shape} differ in shape")
    pictures = draw_frames(prediction, truth, component=component, plane=plane, grid=grid, frame_dt=frame_dt)
    pictures = _on_palette(pictures, _maps(prediction if truth is None else truth, component))
    with whole_file(path) as partial:
        pictures[0].save(
            partial,
            format="GIF",
            save_all=True,
            append_images=pictures[1:],
            duration=round(1000 / frames_per_second),
            loop=0,
        )
    return path


@styled
def draw_frames(
    prediction: Array,
    truth: Array | None = None,
    *,
    component: Component,
    plane: Plane | None = None,
    grid: Grid | None = None,
    frame_dt: float | None = None,
) -> list[Image.Image]:
    """One picture per frame. Prediction and truth share their limits over the whole roll-out."""
    plane = plane or middle_planes(prediction.shape[1:-1])[0]
    shown = {"Prediction": plane.take(prediction[..., component.channel])}
    if truth is not None:
        exact = plane.take(truth[..., component.channel])
        shown = {"Truth": exact, **shown, "Difference": shown["Prediction"] - exact}
    limits = color_limits(shown.get("Truth", shown["Prediction"]))
    edges = plane_edges(plane, prediction.shape[1:-1], grid) if len(plane.axes) == 2 else None
    width, height = (2.9, 2.2) if edges is None else panel_size([edges], side=2.9, shortest=1.6)
    figure = new_figure(width * len(shown) + 0.4, height + 0.95)
    canvas = FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(shown), squeeze=False)[0]
    updates = []
    for axes, (name, values) in zip(panels, shown.items(), strict=True):
        scale = difference_limits(values) if name == "Difference" else limits
        if edges is None:
            updates.append(_line(axes, values, scale, name, grid))
        else:
            updates.append(_image(figure, axes, values, scale, name, edges, component.label))
        axes.set_title(name)
    return [_render(canvas, updates, frame, time_label(frame, frame_dt)) for frame in range(len(prediction))]


def _image(
    figure: Figure,
    axes: Axes,
    values: Array,
    scale: Limits,
    name: str,
    edges: Edges,
    label: str,
) -> Callable[[int], None]:
    colors = difference_map() if name == "Difference" else field_map(scale)
    image = draw_plane(axes, values[0], edges, scale, colors, smooth=True)
    bar = figure.colorbar(image, ax=axes, orientation="horizontal", aspect=30, pad=0.03)
    bar.outline.set_visible(False)
    bar.set_label("prediction − truth" if name == "Difference" else literal(label))
    return lambda frame: image.set_array(values[frame])


def _line(axes: Axes, values: Array, scale: Limits, name: str, grid: Grid | None) -> Callable[[int], None]:
    margin = 0.08 * (scale.high - scale.low)
    color = series_color(3 if name == "Difference" else 0)
    (line,) = axes.plot(line_points(values.shape[-1], grid), values[0, 0], color=color)
    axes.set_ylim(scale.low - margin, scale.high + margin)
    axes.set_xlabel(axis_name(0))
    return lambda frame: line.set_ydata(values[frame, 0])


def _render(canvas: FigureCanvasAgg, updates: Sequence[Callable[[int], None]], frame: int, title: str) -> Image.Image:
    for update in updates:
        update(frame)
    canvas.figure.suptitle(title, fontsize=10.5)
    canvas.draw()
    return Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3].copy())


def _maps(frames: Array, component: Component) -> list[Colormap]:
    return [field_map(color_limits(frames[..., component.channel])), difference_map()]


def _on_palette(pictures: Sequence[Image.Image], maps: Sequence[Colormap]) -> list[Image.Image]:
    """All frames on one palette of the colour maps and greys: true colours, no flicker, white stays white."""
    num_greys = 40
    each = (256 - num_greys) // len(maps)
    parts = [colors(np.linspace(0, 1, each))[:, :3] for colors in maps]
    greys = np.linspace(0, 1, 256 - each * len(maps))[:, None].repeat(3, axis=1)
    palette = Image.new("P", (1, 1))
    palette.putpalette(np.rint(np.concatenate([*parts, greys]) * 255).astype(np.uint8).tobytes())
    return [picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures]
