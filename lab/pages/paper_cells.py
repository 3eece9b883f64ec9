"""Which file under results/ holds the number of a cell of the paper's tables and figures."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from factformer import recipes
from factformer.report import paper
from factformer.studies.cells import Cell, Target, Training
from factformer.studies.result import find_value
from factformer.studies.scales import size_of
from factformer.training.experiment.definition import flat
from lab.campaign.entries import BFLOAT, BOX_STORAGE, STEADY, Entry
from lab.campaign.record import text
from lab.campaign.run_groups import GROUPS
from lab.pages.findings import Finding

Found = Mapping[str, Finding]
IN_ALL = {*BFLOAT, BOX_STORAGE}
"""Settings of how a run is computed, not of what is computed."""
PAPER_UPDATES = {paper.LM: 100_000, paper.AR: 64_000}
BATCH_SIZES = {table.problem: table.batch_size for table in paper.BENCHMARKS.values()}
REPRODUCED = "paper"
"""Folder below results/ of what `factformer reproduce` wrote, one file for each target."""
NOT_RUN = "not run"
Place = tuple[str, str]
"""Row and quantity of a cell."""
Filled = Mapping[Place, "Ours"]
Key = tuple[str, int]
Setting = tuple[int, float, str]


@dataclass(frozen=True)
class Ours:
    """Our number of a cell, where it is there."""

    value: float | None = None
    spread: float | None = None
    """Standard error over test solutions."""
    status: str = NOT_RUN
    path: str = ""
    """Below the folder of results."""
    same_grid: bool = False
    """Whether the grid is the paper's."""


def read_reproduced(results: Path) -> dict[str, Mapping[str, Any]]:
    """The files that `factformer reproduce` wrote, by target."""
    files = sorted((results / REPRODUCED).glob("*.json"))
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in files}


def fill(target: Target, found: Found, reproduced: Mapping[str, Mapping[str, Any]]) -> dict[Place, Ours]:
    """Our number of every cell of a target.

    Numbers of `factformer reproduce` come first. Otherwise the runs of a target that belong together, those of one
    problem and grid, all come from one grid, one training time and one dataset: those that fill the most cells and, of
    two, the ones closer to the paper's grid. So rows of a table are never compared at unequal cost.
    """
    rows = reproduced.get(target.name, {}).get("cells", ())
    made = {(row["row"], row["quantity"]): row for row in rows if row["ours"] is not None}
    runs = [cell.work for cell in target.cells if isinstance(cell.work, Training)]
    known = {run: matching(run, found) for run in dict.fromkeys(runs)}
    chosen = {key: usual_setting(key, known) for key in {key_of(run) for run in known}}
    filled: dict[Place, Ours] = {}
    for cell in target.cells:
        place = place_of(cell)
        filled[place] = Ours()
        if row := made.get(place):
            path = f"{REPRODUCED}/{target.name}.json"
            filled[place] = Ours(
                row["ours"], row["standard_error"], row["status"], path, row["status"] == "paper scale"
            )
        elif isinstance(cell.work, Training):
            for entry in known[cell.work]:
                if setting_of(entry) == chosen[key_of(cell.work)]:
                    filled[place] = from_run(cell, cell.work, entry, found[entry.path])
    return filled


def place_of(cell: Cell) -> Place:
    return cell.row, cell.quantity


def from_run(cell: Cell, run: Training, entry: Entry, finding: Finding) -> Ours:
    """The number of a cell in the file of a run."""
    value = find_value(finding.result, cell.path)
    same_grid = entry.run.resolution == paper_size(run)
    if cell.kind == "seconds":  # another grid or batch takes another time
        batch = BATCH_SIZES.get(str(finding.result["problem"]))
        value = value if same_grid and finding.result.get("batch_size") == batch else None
    if value is None and cell.kind != "error":
        return Ours()
    spread = find_value(finding.result, cell.error_path) if cell.error_path else None
    status = status_of(run, entry, finding) if value is not None else "failed (the roll-out diverged)"
    return Ours(value, spread, status, finding.path, same_grid)


def status_of(run: Training, entry: Entry, finding: Finding) -> str:
    """``paper scale``, or ``reduced`` and how."""
    preset = size_of(run, "paper").preset
    data = finding.result.get("data", {})
    whole = data.get("train") == preset.num_trajectories["train"]
    same_grid = entry.run.resolution == paper_size(run)
    if same_grid and whole and finding.updates >= PAPER_UPDATES.get(run.protocol, math.inf):
        return "paper scale"
    axes = "²" if len(finding.result["grid"]) == 2 else "³"
    how = [f"{entry.run.resolution}{axes}", f"{finding.minutes:.0f} min", f"{finding.updates:,} updates"]
    how += [] if whole or not data else [f"{data['train']:,} of {preset.num_trajectories['train']:,} solutions"]
    return f"reduced ({', '.join(how)})"


def matching(run: Training, found: Found) -> list[Entry]:
    """The entries that were run and train the same model in the same way, on whatever grid and for however long."""
    return [
        entry
        for entry in known_entries()
        if entry.path in found
        and (entry.run.recipe, entry.run.model, entry.run.protocol) == (run.recipe, run.model, run.protocol)
        and (run.protocol != STEADY or entry.run.resolution == paper_size(run))
        and own_settings(entry.run) == own_settings(run)
    ]


@cache
def known_entries() -> tuple[Entry, ...]:
    """The runs of all groups that are judged by the test set."""
    return tuple(entry for build in GROUPS.values() for entry in build() if entry.split == "test")


@cache
def own_settings(run: Training) -> frozenset[str]:
    """The settings in which a run differs from its recipe."""
    names = [f"model.name={run.model}", f"protocol.name={run.protocol}"]
    usual = flat(recipes.build(run.recipe, "paper", names).model_dump(mode="json"))
    pairs = ((setting, *setting.split("=", 1)) for setting in run.settings if setting not in IN_ALL)
    return frozenset(setting for setting, key, value in pairs if key not in usual or text(usual[key]) != value)


def usual_setting(key: Key, known: Mapping[Training, list[Entry]]) -> Setting | None:
    """Grid, minutes and data that most runs of a problem and grid share; of two, those closer to the paper's grid."""
    runs = [run for run in known if key_of(run) == key]
    counts = Counter(setting for run in runs for setting in {setting_of(entry) for entry in known[run]})
    if not counts:
        return None
    return min(counts, key=lambda setting: (-counts[setting], abs(math.log(max(setting[0], 1) / key[1])), -setting[1]))


def key_of(run: Training) -> Key:
    return run.recipe, paper_size(run)


def setting_of(entry: Entry) -> Setting:
    return entry.run.resolution or 0, entry.minutes, entry.data_name


@cache
def paper_size(run: Training) -> int:
    """Points per axis in the paper."""
    return run.resolution or size_of(run, "paper").preset.resolution
