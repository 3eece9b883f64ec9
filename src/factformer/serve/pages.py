"""The pages of the server: what they say is made from the bundle; they ask nobody but this server."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

import jinja2

from factformer import __version__
from factformer.batch import describe_part
from factformer.report.style import palette_css
from factformer.serve.limits import MEGABYTE, Limits
from factformer.surrogate import Surrogate


def environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.PackageLoader("factformer.serve", "assets"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def docs_page(surrogate: Surrogate, limits: Limits, address: str) -> str:
    """How to ask for predictions, with the arrays of this bundle."""
    return (
        environment()
        .get_template("docs.html")
        .render(
            address=address.rstrip("/"),
            problem=surrogate.problem,
            subject=subject(surrogate),
            parts=parts(surrogate),
            limits=limits,
            megabyte=MEGABYTE,
            version=__version__,
        )
    )


def subject(surrogate: Surrogate) -> str:
    """The problem's name as a heading: ``Kolmogorov flow``."""
    words = surrogate.problem.name.replace("_", " ").strip()
    return words[:1].upper() + words[1:]


def parts(surrogate: Surrogate) -> list[dict[str, Any]]:
    """Name, shape and meaning of each array that a request holds."""
    problem = surrogate.problem
    grid, frames = problem.grid.shape, problem.num_context_frames
    shapes: dict[str, tuple[object, ...]] = {
        "context": ("n", frames, *grid, problem.num_state_channels),
        "static": ("n", *grid, problem.num_static_channels),
        "forcing": ("n", f"{frames} + num_frames", *grid, problem.num_forcing_channels),
        "parameters": ("n", len(problem.parameters)),
        "mask": ("n", *grid),
    }
    names = (*(["context"] if frames else []), *problem.parts)
    return [
        {
            "name": name,
            "shape": f"({', '.join(map(str, shapes[name]))})",
            "sizes": [1 if size == "n" else size for size in shapes[name]],
            "meaning": describe_part(problem, name),
        }
        for name in names
    ]


@cache
def styles() -> str:
    """The look of the report, and what only these pages need."""
    report = asset("report.css", "factformer.report", "templates")
    return "\n".join([palette_css(), report, asset("page.css")])


def asset(name: str, package: str = "factformer.serve", folder: str = "assets") -> str:
    """The text of a file that comes with the package."""
    return (resources.files(package) / folder / name).read_text(encoding="utf-8")
