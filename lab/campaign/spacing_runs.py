"""Patch × stride × context × depth × width of factformer_plus, and the runs of the tables with what wins.

Every combination trains for a minute, those that may decide with two seeds. It is judged by validation data, at
physical times that all combinations of its problem predict.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from factformer.report.common_times import common_times
from factformer.studies.cells import Training
from lab.campaign.entries import BFLOAT, BOX_STORAGE, LATENT, PLUS, STEADY, Entry, again, entry_name
from lab.campaign.research import Round, of_rounds

RESULTS = Path("results")
SEED = "training.seed=1"


@dataclass(frozen=True)
class Spacing:
    """One combination; what is not said is the recipe's."""

    patch: int = 1
    stride: int = 1
    context: int | None = None
    depth: int | None = None
    width: int | None = None
    kernel: int | None = None
    twice: bool = False
    """Whether it has a second seed."""

    @property
    def settings(self) -> tuple[str, ...]:
        values = {
            "model.patch": self.patch if self.patch > 1 else None,
            "protocol.stride": self.stride if self.stride > 1 else None,
            "data.num_context_frames": self.context,
            "model.depth": self.depth,
            "model.dim": self.width,
            "model.local_kernel": self.kernel,
        }
        return tuple(f"{key}={value}" for key, value in values.items() if value is not None)

    @property
    def title(self) -> str:
        words = [f"patch {self.patch}", f"stride {self.stride}"]
        named = {"context": self.context, "depth": self.depth, "width": self.width, "kernel": self.kernel}
        return ", ".join([*words, *(f"{name} {value}" for name, value in named.items() if value is not None)])


PROBLEMS: Mapping[str, tuple[str, int, tuple[Spacing, ...], tuple[str, ...]]] = {
    "Kolmogorov 128": (
        "kolmogorov",
        128,
        (
            Spacing(twice=True),
            Spacing(2, twice=True),
            Spacing(2, context=2, twice=True),
            Spacing(2, 2, 5, twice=True),
            Spacing(2, 2, 2, twice=True),
            Spacing(1, 2, 2),
            Spacing(2, 2, 2, depth=6),
            Spacing(2, 2, 2, depth=8),
            Spacing(2, 2, 2, width=192),
            Spacing(2, 2, 2, width=256),
            Spacing(2, 2, 2, kernel=9),
            Spacing(2, 4, 2),
            Spacing(4, 1, 2),
            Spacing(4, 2, 2),
        ),
        (),
    ),
    "Kolmogorov 256": (
        "kolmogorov",
        256,
        (Spacing(), Spacing(2, 1, 2, twice=True), Spacing(2, 2, 2, twice=True), Spacing(4, 1, 2), Spacing(4, 2, 2)),
        (),
    ),
    "turbulence 60": (
        "turbulence",
        60,
        (Spacing(), Spacing(2, twice=True), Spacing(2, 1, 2, twice=True), Spacing(2, 2, 2), Spacing(3, 1, 2)),
        (BOX_STORAGE,),
    ),
    "smoke 64": (
        "smoke",
        64,
        (Spacing(), Spacing(2, twice=True), Spacing(2, 1, 2, twice=True), Spacing(2, 2, 2), Spacing(4, 1, 2)),
        (BOX_STORAGE,),
    ),
    "Darcy 85": (
        "darcy",
        85,
        (Spacing(twice=True), Spacing(depth=6, twice=True), Spacing(2), Spacing(2, depth=6), Spacing(width=192)),
        (),
    ),
}
"""Recipe, points per axis, combinations and what all of them need."""
LIKELY = {
    "Kolmogorov 128": Spacing(2, 2, 2),
    "Kolmogorov 256": Spacing(2, 2, 2),
    "turbulence 60": Spacing(2, 1, 2),
    "smoke 64": Spacing(2, 1, 2),
    "Darcy 85": Spacing(depth=6),
}
"""What is taken where the combinations have not been run."""


def _round(name: str) -> Round:
    problem, size, combinations, needed = PROBLEMS[name]
    ideas = {}
    for one in combinations:
        ideas[f"{name}, {one.title}"] = one.settings
        if one.twice:
            ideas[f"{name}, {one.title}, again"] = (*one.settings, SEED)
    noise = 0.001 if problem == "darcy" else 0.005
    return Round(f"Patches and strides: {name}", size, needed, ideas, problem, noise, "spacing")


SPACING_ROUNDS = tuple(_round(name) for name in PROBLEMS)


def spacing() -> list[Entry]:
    """All combinations of all problems."""
    return of_rounds(SPACING_ROUNDS)


def error_at(result: Mapping[str, Any], interval: float) -> float:
    """The mean error over the frames that are a whole number of ``interval`` after the context, and over fields.

    Infinite where one of them is not known.
    """
    frame_dt, curves = result["frame_dt"], [group["relative_l2_per_frame"] for group in result["fields"].values()]
    times = common_times([(interval, len(curves[0])), (frame_dt, len(curves[0]))])
    errors = [None if times is None else times.mean(curve, frame_dt) for curve in curves]
    known = [error for error in errors if error is not None]
    return statistics.mean(known) if len(known) == len(errors) else math.inf


def chosen(name: str, results: Path = RESULTS) -> Spacing:
    """The combination with the smallest validation error, by the mean of its seeds; `LIKELY` until all were run."""
    _, _, combinations, _ = PROBLEMS[name]
    longest = max(one.stride for one in combinations)
    entries = {entry.title: entry for entry in spacing()}
    errors = []
    for one in combinations:
        titles = [f"{name}, {one.title}"] + [f"{name}, {one.title}, again"] * one.twice
        paths = [results / entries[title].path for title in titles]
        if not all(path.is_file() for path in paths):
            return LIKELY[name]
        found = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
        errors.append(statistics.mean(error_at(r, longest * r["frame_dt"] / r.get("stride", 1)) for r in found))
    return combinations[errors.index(min(errors))]


def spaced(results: Path = RESULTS) -> list[Entry]:
    """The tables with the combination that won: two seeds of the short runs, and the long ones."""
    found = []
    for name, minutes, data, bundle in (
        ("Kolmogorov 128", 3.0, "", ""),
        ("Kolmogorov 256", 3.0, "", "kolmogorov-256"),
        ("Darcy 85", 2.0, "", "darcy-85"),
        ("Kolmogorov 128", 12.0, "", "kolmogorov-128"),
        ("turbulence 60", 15.0, "turbulence-1000", "turbulence-60"),
        ("smoke 64", 15.0, "smoke-2000", "smoke-64"),
    ):
        recipe, size, _, needed = PROBLEMS[name]
        choice = chosen(name, results)
        protocol = STEADY if recipe == "darcy" else LATENT
        run = Training(recipe, PLUS, protocol, size, (*BFLOAT, *needed, *choice.settings))
        long = minutes > 4
        entry = Entry(
            "spaced",
            f"{recipe}-{size}" + "-large" * bool(data),
            f"{entry_name(PLUS, protocol, minutes)}-spaced",
            run,
            minutes,
            choice.title,
            bundle=bundle,
            in_segments=long,
            data=data,
        )
        found += [entry] if long else [entry, again(entry, 1)]
    return found
