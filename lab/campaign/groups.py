"""The entries by group, as tables and commands ask for them."""

from __future__ import annotations

from collections.abc import Iterable

from factformer.config import unknown_name
from lab.campaign.entries import (
    BOX_STORAGE,
    Entry,
    ablations,
    boxes,
    darcy,
    darcy_resolutions,
    kolmogorov,
    long,
    recipe,
)
from lab.campaign.research import research
from lab.campaign.search import search, tuned

GROUPS = {
    "kolmogorov": kolmogorov,
    "kolmogorov-recipe": lambda: recipe("kolmogorov", 128),
    "darcy": darcy,
    "darcy-resolutions": darcy_resolutions,
    "turbulence": lambda: boxes("turbulence", 60),
    "smoke": lambda: boxes("smoke", 64),
    "smoke-recipe": lambda: recipe("smoke", 64, BOX_STORAGE),
    "ablations": ablations,
    "research": research,
    "long": long,
    "search": search,
    "tuned": tuned,
}


def find_entries(names: Iterable[str]) -> list[Entry]:
    """The entries of groups, or single ones by ``group/beginning of the name``, in order, each file once."""
    found: list[Entry] = []
    for name in names:
        group, _, part = name.partition("/")
        if group not in GROUPS:
            raise unknown_name("group of runs", group, GROUPS)
        chosen = [entry for entry in GROUPS[group]() if entry.name.startswith(part)]
        if not chosen:
            raise unknown_name(f"run of {group}", part, [entry.name for entry in GROUPS[group]()])
        found += [entry for entry in chosen if entry.path not in {known.path for known in found}]
    return found
