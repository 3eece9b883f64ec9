"""The figures that go with a target, drawn from whatever is finished."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from factformer._support.run_names import ROLLOUTS
from factformer.report import figures
from factformer.report.analysis import save_figures
from factformer.report.planes import axis_name, components
from factformer.report.samples import read_rollouts
from factformer.studies.cells import Costing, Emulating, Looking, Training
from factformer.studies.result import StudyResult, find_value

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Drawn = dict[str, "Figure"]
W = TypeVar("W")


def write_pictures(study: StudyResult) -> list[Path]:
    """The figures of a target as PNG in its folder; none where nothing is finished."""
    return save_figures(DRAWERS.get(study.target.name, trends)(study), study.folder / "figures")


def trends(study: StudyResult) -> Drawn:
    """Error frame by frame of every run, one figure per field group and problem."""
    lines: dict[tuple[str, str], list[figures.TrendLine]] = {}
    floors: dict[tuple[str, str], tuple[float, Any]] = {}
    drawn_runs: set[str] = set()
    for cell, done in zip(study.target.cells, study.ended, strict=True):
        work = cell.work
        if not isinstance(work, Training) or done.result is None or done.folder in drawn_runs:
            continue
        drawn_runs.add(done.folder)
        frame_dt = done.result["frame_dt"]
        size = "x".join(map(str, done.result["grid"]))
        for group, values in done.result["fields"].items():
            errors = values["relative_l2_per_frame"]
            if len(errors) > 1 and None not in errors:
                name = cell.row if study.target.name == "seeds" else work.model
                key = (group, size)
                line = figures.TrendLine(name, errors, work.protocol, frame_dt=frame_dt)
                lines.setdefault(key, []).append(line)
                floors.setdefault(key, (frame_dt, values["persistence"]["relative_l2_per_frame"]))
    return {
        f"error-{group}-{size}": figures.error_trend(
            found, field=group, frame_dt=floors[group, size][0], persistence=floors[group, size][1]
        )
        for (group, size), found in lines.items()
    }


def resolutions(study: StudyResult) -> Drawn:
    """Error against training resolution."""
    errors: dict[str, dict[int, float | None]] = {}
    for cell, done in zip(study.target.cells, study.ended, strict=True):
        assert isinstance(cell.work, Training)
        assert cell.work.resolution is not None
        value = find_value(done.result, cell.path) if done.result is not None else None
        errors.setdefault(cell.row, {})[cell.work.resolution] = value
    sizes = sorted({size for values in errors.values() for size in values})
    known = {name: [values.get(size) for size in sizes] for name, values in errors.items()}
    known = {name: values for name, values in known.items() if any(v is not None for v in values)}
    return {"resolutions": figures.resolution_study(sizes, known, field="solution")} if known else {}


def bars(setting: str, chosen: str) -> Callable[[StudyResult], Drawn]:
    """An ablation as bars."""

    def draw(study: StudyResult) -> Drawn:
        rows = [row for row in study.rows() if row["ours"] is not None]
        values = {row["row"]: row["ours"] for row in rows}
        spread = {row["row"]: row["standard_error"] for row in rows if row["standard_error"] is not None}
        if not values:
            return {}
        picked = chosen if chosen in values else None
        return {
            "ablation": figures.ablation_bars(values, setting=setting, chosen=picked, standard_errors=spread or None)
        }

    return draw


def costs(size_label: str, size_of: Callable[[Costing], int]) -> Callable[[StudyResult], Drawn]:
    """Time and memory against a size; a case that ran out of memory is marked."""

    def draw(study: StudyResult) -> Drawn:
        drawn: Drawn = {}
        sizes = list(dict.fromkeys(size_of(c.work) for c in study.target.cells if isinstance(c.work, Costing)))
        for path in dict.fromkeys(cell.path for cell in study.target.cells):
            curves: dict[str, list[float | None]] = {}
            for cell, row in zip(study.target.cells, study.rows(), strict=True):
                if cell.path == path and isinstance(cell.work, Costing):
                    curves.setdefault(cell.work.case.model, []).append(row["ours"])
            label = next(cell.quantity for cell in study.target.cells if cell.path == path)
            if any(value is not None for values in curves.values() for value in values):
                drawn[path.replace("_", "-")] = figures.cost_curves(
                    sizes, curves, size_label=size_label, cost_label=label
                )
        return drawn

    return draw


def looks(study: StudyResult) -> Drawn:
    """Cumulative energy with a line per layer, and the kernels of the first head."""
    drawn: Drawn = {}
    for _, folder, result in _finished(study, Looking):
        for axis in dict.fromkeys(row["axis"] for row in result["kernels"]):
            rows = [row for row in result["kernels"] if row["axis"] == axis]
            where = "all points" if axis is None else f"axis {axis_name(axis)}"
            name = f"energy-{result['model']}" + ("" if axis is None else f"-axis{axis + 1}")
            drawn[name] = figures.energy_curves(
                {f"layer {row['layer'] + 1}": np.asarray(row["cumulative_energy"]) for row in rows},
                threshold=result["energy_share"],
                title=f"{result['model']}, {where}",
            )
        kernels = folder / "inspection" / "kernels.npz"
        if kernels.is_file():
            with np.load(kernels, allow_pickle=False) as file:
                maps = {_caption(name): file[name][0] for name in file.files}
            drawn[f"kernels-{result['model']}"] = figures.kernel_maps(maps)
    return drawn


def emulations(study: StudyResult) -> Drawn:
    """Error state by state, one figure for each scenario of APEBench."""
    lines: dict[str, list[figures.TrendLine]] = {}
    for cell, done in zip(study.target.cells, study.ended, strict=True):
        work = cell.work
        if isinstance(work, Emulating) and done.result is not None and None not in done.result["per_frame"]:
            line = figures.TrendLine(work.model, done.result["per_frame"])
            lines.setdefault(work.scenario, []).append(line)
    return {f"error-{name}": figures.error_trend(found, field=name) for name, found in lines.items()}


def field_pages(study: StudyResult) -> Drawn:
    """Prediction, truth and difference of the first two samples on a plane; middle planes of the first one in a cube.

    Steady problems have one frame; others are shown over time.
    """
    drawn: Drawn = {}
    for work, folder, result in _finished(study, Training):
        samples = read_rollouts(folder / ROLLOUTS)
        frame_dt = result["frame_dt"] if result["num_frames"] > 1 else None
        for component in components(samples.fields):
            for number, rollout in enumerate(samples.rollouts[:2], start=1):
                name = f"{work.recipe}-{component.group}-{component.channel + 1}-sample{number}"
                drawn[name] = figures.comparison(rollout, component, frame_dt=frame_dt, grid=samples.grid)
                if samples.grid is not None and samples.grid.num_axes > 2:
                    drawn[f"{name}-planes"] = figures.middle_slices(rollout, component, grid=samples.grid)
                    break
    return drawn


def _finished(study: StudyResult, kind: type[W]) -> Iterator[tuple[W, Path, dict[str, Any]]]:
    """Each finished work of a kind once, with its folder and its result."""
    seen: set[str] = set()
    for cell, done in zip(study.target.cells, study.ended, strict=True):
        if isinstance(cell.work, kind) and done.result is not None and done.folder not in seen:
            seen.add(done.folder)
            yield cell.work, Path(done.folder), done.result


def _caption(name: str) -> str:
    """``layer0_axis1`` → ``layer 1, x₂``."""
    layer, axis = (int(part.lstrip("layerxis")) for part in name.split("_"))
    return f"layer {layer + 1}, {axis_name(axis)}"


DRAWERS: dict[str, Callable[[StudyResult], Drawn]] = {
    "figure-darcy-resolutions": resolutions,
    "ablation-heads": bars("number of heads", "8"),
    "ablation-kernel-dim": bars("kernel dimension", "128"),
    "figure-cost-2d": costs("kernel dimension", lambda work: int(work.case.overrides["kernel_dim"])),
    "figure-cost-3d": costs("points per axis", lambda work: work.case.problem.grid.shape[0]),
    "spectra": looks,
    "kernels": looks,
    "pictures": field_pages,
    "apebench": emulations,
    "apebench-1d": emulations,
}
