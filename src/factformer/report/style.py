"""One look for every figure, animation and page: colours, colour maps, line styles and type.

Diverging maps are curves through OKLab (Ottosson 2020) sampled at equal arc length, so that equal steps in
the data are equal steps to the eye; lightness rises or falls monotonically from the centre on both
arms, so that they also read in grey and with colour-blind eyes.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

import matplotlib
import numpy as np
from matplotlib.colors import Colormap, ListedColormap
from matplotlib.figure import Figure
from numpy.typing import NDArray

from factformer._support.text import printable, shortened

P = ParamSpec("P")
R = TypeVar("R")

# Okabe & Ito's colours, ordered and darkened a little so that thin lines hold on white; then for dark pages.
SERIES = ("#0a6bb5", "#d1560b", "#0b8f6a", "#a8508f", "#b07d00", "#3a9bd1", "#6b5bd2", "#7a7a7a")
SERIES_DARK = ("#5ab0f2", "#f28a4b", "#3fc79c", "#dd8cc4", "#e0b040", "#8fd3f7", "#a99bff", "#b5b5b5")
INK, MUTED, FAINT, PAPER = "#1d2430", "#667085", "#e4e7ec", "#ffffff"
BODY = "#808080"
"""What lies outside the domain, where a field has no values; the page's player paints it so as well."""
DASHES = {"autoregressive": "--", "latent_marching": "-", "steady": "-"}
PROTOCOL_LABELS = {"autoregressive": "AR", "latent_marching": "LM", "steady": "steady"}

RC: dict[str, Any] = {
    "figure.facecolor": PAPER,
    "figure.dpi": 110,
    "savefig.dpi": 160,
    "font.family": "sans-serif",
    "font.size": 9.5,
    "text.color": INK,
    "axes.facecolor": PAPER,
    "axes.edgecolor": "#98a2b3",
    "axes.labelcolor": INK,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.7,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "lines.linewidth": 1.8,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "image.interpolation": "nearest",
    "svg.fonttype": "none",
}


RC_DARK: dict[str, Any] = {
    "figure.facecolor": "#191d25",
    "axes.facecolor": "#191d25",
    "text.color": "#e8eaee",
    "axes.labelcolor": "#9aa3b2",
    "xtick.color": "#9aa3b2",
    "ytick.color": "#9aa3b2",
}


def styled(function: Callable[P, R]) -> Callable[P, R]:
    """Run a drawing function under the house style, leaving matplotlib's own settings untouched."""

    @wraps(function)
    def inner(*args: P.args, **kwargs: P.kwargs) -> R:
        with matplotlib.rc_context(RC):
            return function(*args, **kwargs)

    return inner


def literal(text: str, length: int = 40) -> str:
    """A name as matplotlib shall draw it: letter by letter, in one line, and not too long."""
    return shortened(printable(text), length).replace("$", r"\$")


def new_figure(width: float, height: float) -> Figure:
    """An empty figure in inches, laid out so that labels never overlap; it belongs to no global state."""
    return Figure(figsize=(width, height), layout="constrained")


def series_color(index: int) -> str:
    """The colour of the ``index``-th line or bar; the palette repeats after its last colour."""
    return SERIES[index % len(SERIES)]


def line_style(protocol: str) -> str:
    """Dashed for autoregressive training, solid for latent marching, as in the paper's error trends."""
    return DASHES.get(protocol, "-")


@cache
def sequential_map() -> Colormap:
    """For fields of one sign."""
    return matplotlib.colormaps["viridis"].with_extremes(bad=BODY)


@cache
def diverging_map(*, dark: bool = False) -> Colormap:
    """Blue through the page's colour to red, for fields that change sign; ``dark`` puts a dark centre."""
    return _diverging("factformer_field", 252.0, 35.0, dark)


@cache
def difference_map(*, dark: bool = False) -> Colormap:
    """Purple through the page's colour to green: a difference is never mistaken for the field itself."""
    return _diverging("factformer_difference", 312.0, 152.0, dark)


def palette_css() -> str:
    """The colours of lines as variables of a page, for light and dark ones."""
    light = "".join(f"--series-{i}:{color};" for i, color in enumerate(SERIES))
    dark = "".join(f"--series-{i}:{color};" for i, color in enumerate(SERIES_DARK))
    return f":root{{{light}}}\n@media (prefers-color-scheme: dark){{:root{{{dark}}}}}"


def color_tables() -> dict[str, str]:
    """The colour maps by name for a page's script: red, green and blue bytes in base64."""
    maps = {
        "sequential": sequential_map(),
        "diverging": diverging_map(),
        "difference": difference_map(),
        "diverging_dark": diverging_map(dark=True),
        "difference_dark": difference_map(dark=True),
    }
    return {name: base64.b64encode(_color_bytes(colors)).decode() for name, colors in maps.items()}


def _color_bytes(colors: Colormap) -> bytes:
    return bytes(np.rint(colors(np.arange(colors.N))[:, :3] * 255).astype(np.uint8).tobytes())


def _diverging(name: str, low_hue: float, high_hue: float, dark: bool) -> Colormap:
    arms = [_arm(hue, dark) for hue in (low_hue, high_hue)]
    colors = np.concatenate([arms[0][:0:-1], arms[1]])
    return ListedColormap(colors, name=name + ("_dark" if dark else "")).with_extremes(bad=BODY)


def _arm(hue: float, dark: bool, num_colors: int = 128) -> NDArray[np.float64]:
    # Lightness and chroma of a quadratic Bezier curve: centre, a vivid control point, end.
    points = [(0.20, 0.0), (0.55, 0.23), (0.95, 0.05)] if dark else [(0.975, 0.0), (0.66, 0.20), (0.32, 0.09)]
    direction = np.array([np.cos(np.radians(hue)), np.sin(np.radians(hue))])
    controls = [np.array([lightness, *(chroma * direction)]) for lightness, chroma in points]
    s = np.linspace(0, 1, 2001)[:, None]
    curve = (1 - s) ** 2 * controls[0] + 2 * s * (1 - s) * controls[1] + s**2 * controls[2]
    length = np.concatenate([[0], np.linalg.norm(np.diff(curve, axis=0), axis=1).cumsum()])
    targets = np.linspace(0, length[-1], num_colors)
    return _oklab_to_srgb(np.stack([np.interp(targets, length, curve[:, c]) for c in range(3)], axis=1))


def _oklab_to_srgb(lab: NDArray[np.float64]) -> NDArray[np.float64]:
    to_cone = np.array(
        [
            [1, 0.3963377774, 0.2158037573],
            [1, -0.1055613458, -0.0638541728],
            [1, -0.0894841775, -1.2914855480],
        ]
    )
    to_linear = np.array(
        [
            [4.0767416621, -3.3077115913, 0.2309699292],
            [-1.2684380046, 2.6097574011, -0.3413193965],
            [-0.0041960863, -0.7034186147, 1.7076147010],
        ]
    )
    linear = ((lab @ to_cone.T) ** 3 @ to_linear.T).clip(0, 1)
    return np.asarray(np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055))


def srgb_to_oklab(colors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Lightness and the two opponent axes of sRGB colours in [0, 1]."""
    linear = np.where(colors <= 0.04045, colors / 12.92, ((colors + 0.055) / 1.055) ** 2.4)
    to_cone = np.array(
        [
            [0.4122214708, 0.5363325363, 0.0514459929],
            [0.2119034982, 0.6806995451, 0.1073969566],
            [0.0883024619, 0.2817188376, 0.6299787005],
        ]
    )
    to_lab = np.array(
        [
            [0.2104542553, 0.7936177850, -0.0040720468],
            [1.9779984951, -2.4285922050, 0.4505937099],
            [0.0259040371, 0.7827717662, -0.8086757660],
        ]
    )
    return np.asarray(np.cbrt(linear @ to_cone.T) @ to_lab.T)
