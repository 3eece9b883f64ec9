"""The pages of the server: what they say is made from the bundle; they ask nobody but this server."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

import jinja2

from factformer import __version__
from factformer._support.pages import page_templates
from factformer.arrays import describe_part
from factformer.report.html import embedded_json
from factformer.report.style import color_tables, palette_css
from factformer.report.tables import format_count
from factformer.serve.limits import MEGABYTE, Limits
from factformer.serve.reference import Reference
from factformer.surrogate import Surrogate

SHARED = ("format.js", "paint.js", "enlarge.js", "charts.js")
SCRIPTS = ("talk.js", "stage.js", "live.js")


def environment() -> jinja2.Environment:
    return page_templates("factformer.serve", "assets")


def docs_page(surrogate: Surrogate, limits: Limits, address: str) -> str:
    """How to ask for predictions, with the arrays of this bundle."""
    return (
        environment()
        .get_template("docs.html")
        .render(
            **_about(surrogate),
            address=address.rstrip("/"),
            parts=parts(surrogate),
            limits=limits,
            megabyte=MEGABYTE,
        )
    )


def _about(surrogate: Surrogate) -> dict[str, Any]:
    """What both pages say of the bundle."""
    problem = surrogate.problem
    return {"problem": problem, "subject": subject(surrogate), "steady": problem.steady, "version": __version__}


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


def play_page(surrogate: Surrogate, reference: Reference | str) -> str:
    """The page to play with."""
    problem = surrogate.problem
    why = reference if isinstance(reference, str) else reference.why_no_solver
    made_with = {} if isinstance(reference, str) else reference.parameters.model_dump(exclude=set(problem.parameters))
    shown = [f"{name.replace('_', ' ')} {value:g}" for name, value in made_with.items() if _is_physics(name, value)]
    facts = [
        f"{surrogate.config.name}, {format_count(surrogate.num_parameters)} parameters",
        f"{' × '.join(map(str, problem.grid.shape))} points",
        *([f"frames at intervals of {problem.frame_dt:g}"] if problem.num_context_frames else []),
        *shown,
    ]
    no_start = reference if isinstance(reference, str) else ""
    data = {"maps": color_tables(), "has_start": not no_start, "why_no_start": no_start}
    page = environment().get_template("play.html")
    return page.render(
        **_about(surrogate),
        facts=facts,
        has_solver=not why,
        why_no_solver=why,
        data=embedded_json(data),
    )


def _is_physics(name: str, value: object) -> bool:
    """Whether a parameter of the equation is one that a reader of the page wants to know."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and name not in ("dt", "tolerance", "extent")


@cache
def script() -> str:
    """What the page does, with what it shares with the report."""
    shared = [asset(name, "factformer.report", "templates") for name in SHARED]
    return "\n".join(['"use strict";', *shared, *(asset(name) for name in SCRIPTS)])


@cache
def styles() -> str:
    """The look of the report, and what only these pages need."""
    report = asset("report.css", "factformer.report", "templates")
    return "\n".join([palette_css(), report, asset("page.css")])


def asset(name: str, package: str = "factformer.serve", folder: str = "assets") -> str:
    """The text of a file that comes with the package."""
    return (resources.files(package) / folder / name).read_text(encoding="utf-8")
