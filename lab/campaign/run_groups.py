"""The entries by group, as tables and commands ask for them."""

from __future__ import annotations

from collections.abc import Iterable

from factformer.config import unknown_name
from lab.campaign.condition_runs import reynolds, steps
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
from lab.campaign.literature_runs import literature
from lab.campaign.paper_runs import darcy_more, large_boxes, sizes, table1, whole_length
from lab.campaign.research import research
from lab.campaign.search import search, tuned
from lab.campaign.spacing_runs import spaced, spacing

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
    "reynolds": reynolds,
    "steps": steps,
    "spacing": spacing,
    "spaced": spaced,
    "literature": literature,
    "table1": table1,
    "turbulence-large": lambda: large_boxes("turbulence"),
    "smoke-large": lambda: large_boxes("smoke"),
    "darcy-more": darcy_more,
    "sizes": sizes,
    "whole-length": whole_length,
}


def find_entries(names: Iterable[str]) -> list[Entry]:
    """The entries of groups, or some of a group, in order, each file once.

    After ``group/`` stands a name, ``folder/name``, or the beginning of either.
    """
    found: list[Entry] = []
    for name in names:
        group, _, part = name.partition("/")
        if group not in GROUPS:
            raise unknown_name("group of runs", group, GROUPS)
        known = {entry: (entry.name, f"{entry.folder}/{entry.name}") for entry in GROUPS[group]()}
        exact = [entry for entry, own in known.items() if part in own]
        chosen = exact or [entry for entry, own in known.items() if any(text.startswith(part) for text in own)]
        if not chosen:
            raise unknown_name(f"run of {group}", part, [entry.name for entry in known])
        found += [entry for entry in chosen if entry.path not in {other.path for other in found}]
    return found
