"""Tables and figures of one evaluation, one look at the attention, one benchmark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from factformer import __version__
from factformer._support.files import clean_leftovers, whole_file
from factformer._support.text import file_stem
from factformer.errors import UserError
from factformer.evaluation.attention import Analysis
from factformer.evaluation.cost import OUT_OF_MEMORY
from factformer.evaluation.results import Evaluation
from factformer.evaluation.run import is_our_figure
from factformer.evaluation.solver.results import SolverBenchmark
from factformer.report.planes import axis_name, components
from factformer.report.runs import load_run
from factformer.report.tables import Column, Table, is_steady

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def evaluation_table(result: Evaluation) -> Table:
    """One row per field group, the floor beside the errors; a single frame is not the last of many."""
    later = result.num_frames > 1
    columns = [
        Column("field", "Field"),
        Column("relative_l2", "Error", "error"),
        Column("standard_error", "±", "error"),
        *[Column("relative_l2_final", "Last frame", "error")] * later,
        Column("persistence", f"Floor ({result.floor})", "error"),
        Column("vrmse", "VRMSE", "error"),
        Column("spectrum_error", "Spectrum error", "number"),
        *[Column("correlation_time", "Correlation time", "number")] * later,
    ]
    rows = [
        {**vars(values), "field": name, "persistence": values.persistence.relative_l2}
        for name, values in result.fields.items()
    ]
    title = f"{result.model} on {result.problem}: {result.num_windows} windows of {result.split}"
    return Table(title, columns, rows)


def attention_table(summary: Mapping[str, Any]) -> Table:
    """One row per layer and axis."""
    share = f"{100 * summary['energy_share']:.0f} %"
    columns = [
        Column("layer", "Layer", "count"),
        Column("axis", "Axis"),
        Column("fraction_for_energy", f"Fraction of singular values with {share} of the energy", "number"),
        Column("num_singular_values", "Singular values", "count"),
        Column("rank_bound", "Rank at most", "count"),
        Column("stationarity", "Stationarity", "number"),
        Column("symmetry", "Symmetry", "number"),
    ]
    rows = [
        {**row, "layer": row["layer"] + 1, "axis": "all" if row["axis"] is None else axis_name(row["axis"])}
        for row in summary["kernels"]
    ]
    title = f"Attention of {summary['model']}, mean over heads and {summary['num_samples']} samples"
    return Table(title, columns, rows)


def comparison_table(result: Mapping[str, Any]) -> Table:
    """Milliseconds of a call and of a training step each way, the floor, our distance to it, and peak memory."""
    ways = [key for key in result["rows"][0] if key.startswith("textbook")] + ["ours", "floor"]
    rows = []
    for row in result["rows"]:
        shown = {way: _pair(row.get(way, {}), "infer_ms", "train_ms") for way in ways}
        shown["distance"] = _pair(row["distance"], "infer", "train")
        memory = [row.get(way, {}).get("train_gb") for way in ways[:-1]]
        shown["memory"] = " → ".join("-" if value is None else f"{value:.1f}" for value in memory)
        rows.append({"label": row["label"], **shown})
    columns = [Column("label", "Case", "text"), *(Column(way, f"{way} (ms)", "text") for way in ways)]
    columns += [Column("distance", "times the floor", "text"), Column("memory", "training memory (GB)", "text")]
    return Table("One call / one training step", columns, rows)


def _pair(numbers: Mapping[str, Any], *keys: str) -> str:
    if "status" in numbers:
        return str(numbers["status"])
    return " / ".join("-" if numbers.get(key) is None else f"{numbers[key]:.3g}" for key in keys)


def benchmark_table(result: Mapping[str, Any]) -> Table:
    """The rows of any benchmark; what a case that ran out of memory lacks is marked so."""
    if result["benchmark"] == "comparison":
        return comparison_table(result)
    kinds: dict[str, tuple[str, Any]] = {
        "label": ("Case", "text"),
        "method": ("Method", "text"),
        "resolution": ("Points per axis", "count"),
        "start": ("Start", "text"),
        "dt": ("Time step", "number"),
        "batch_size": ("Batch", "count"),
        "precision": ("Precision", "text"),
        "parameters": ("Parameters", "count"),
        "encoder_seconds": ("Encoder (s)", "seconds"),
        "propagator_seconds": ("Propagator (s)", "seconds"),
        "forward_seconds": ("Forward (s)", "seconds"),
        "training_seconds": ("Forward + backward (s)", "seconds"),
        "forward_memory_mb": ("Memory, forward (MB)", "megabytes"),
        "training_memory_mb": ("Memory, training (MB)", "megabytes"),
        "forward_flops": ("FLOPs, forward", "count"),
        "training_flops": ("FLOPs, training", "count"),
        "seconds": ("Seconds", "seconds"),
        "seconds_per_sequence": ("Seconds per sequence", "seconds"),
        "frames_per_second": ("Frames per second", "number"),
        "peak_memory_mb": ("Memory (MB)", "megabytes"),
        "simulated_seconds_per_second": ("Simulated seconds per second", "number"),
        "solutions_per_second": ("Solutions per second", "number"),
        "errors": ("Relative L2 error", "text"),
        "status": ("Status", "text"),
    }
    rows = [{**row, **_errors(row)} for row in result["rows"]]
    used = [key for key in kinds if any(row.get(key) is not None for row in rows)]
    measured = {key for key in used if key.endswith(("_seconds", "_mb"))}
    shown = [
        {**row, **dict.fromkeys(measured, OUT_OF_MEMORY)} if row.get("status") == OUT_OF_MEMORY else row for row in rows
    ]
    return Table(f"Benchmark: {result['benchmark']}", [Column(key, *kinds[key]) for key in used], shown)


def solver_figure(result: SolverBenchmark) -> Figure:
    """Error against seconds per simulated second of the surrogate and of the solver from each start."""
    from factformer.report import figures

    curves: dict[str, list[tuple[float, float, str]]] = {}
    marks: dict[str, tuple[float, float]] = {}
    for row in result.rows:
        if not row.error:  # of the reference, which is the truth
            continue
        if row.is_surrogate:
            marks[f"surrogate, {row.precision}"] = (row.error, row.seconds_per_simulated_second)
        else:
            point = (row.error, row.seconds_per_simulated_second, str(row.resolution))
            curves.setdefault(f"solver from the {row.start}", []).append(point)
    return figures.pareto(curves, marks)


def write_evaluation_figures(folder: str | Path) -> list[Path]:
    """Error trend, spectra and the first roll-out of an evaluated run folder, as PNG under ``figures/``."""
    from factformer.report import figures
    from factformer.report.reductions import reduction_figures

    run = load_run(folder)
    frame_dt = None if is_steady(run) else run.evaluation.frame_dt
    masked = run.problem is not None and run.problem.masked
    drawn: dict[str, Figure] = {}
    for name, values in run.evaluation.fields.items():
        errors, floor = known(values.relative_l2_per_frame), known(values.persistence.relative_l2_per_frame)
        if errors is not None and len(errors) > 1:
            line = figures.TrendLine(run.name, errors, run.protocol)
            drawn[f"error-{file_stem(name)}"] = figures.error_trend(
                [line], field=name, frame_dt=frame_dt, persistence=floor
            )
        spectrum = values.spectrum
        predicted, true = (None, None) if spectrum is None else (known(spectrum.prediction), known(spectrum.truth))
        if spectrum is not None and predicted is not None and true is not None:
            drawn[f"spectrum-{file_stem(name)}"] = figures.spectra(
                spectrum.wavenumber, {run.name: predicted}, true, field=name, masked=masked
            )
    for part in components(run.fields) if run.rollouts else []:
        drawn[f"rollout-{file_stem(part.group)}-{part.channel}"] = figures.comparison(
            run.rollouts[0], part, frame_dt=frame_dt, grid=run.grid
        )
    if frame_dt is not None:
        drawn |= {f"reduction-{file_stem(n.lower())}": f for n, f in reduction_figures([run], [run.name]).items()}
    drawn |= {f"parameter-{file_stem(name)}": figure for name, figure in parameter_figures(run.evaluation).items()}
    return save_figures(drawn, Path(folder) / "figures")


def parameter_figures(evaluation: Evaluation) -> dict[str, Figure]:
    """Errors against each parameter that differs between the trajectories; none after a divergence."""
    from factformer.report import figures

    table = evaluation.trajectories
    errors = {} if table is None else {name: known(values) for name, values in table.relative_l2.items()}
    finite = {name: values for name, values in errors.items() if values is not None}
    if table is None or not finite:
        return {}
    columns = {name: known(values) for name, values in table.parameters.items()}
    return {
        name: figures.errors_by_parameter(values, finite, name=name)
        for name, values in columns.items()
        if values is not None and len(set(values)) > 1
    }


def write_attention_figures(analysis: Analysis, folder: str | Path) -> list[Path]:
    """Cumulative energy per axis with a line per layer, and the kernels of every head, a page per layer."""
    from factformer.report import figures

    drawn: dict[str, Figure] = {}
    axes = list(dict.fromkeys(row["axis"] for row in analysis.summary["kernels"]))
    for axis in axes:
        rows = [row for row in analysis.summary["kernels"] if row["axis"] == axis]
        curves = {f"layer {row['layer'] + 1}": row["cumulative_energy"] for row in rows}
        where = "all points" if axis is None else f"axis {axis_name(axis)}"
        drawn["energy-full" if axis is None else f"energy-axis{axis + 1}"] = figures.energy_curves(
            curves, threshold=analysis.summary["energy_share"], title=f"Attention kernels, {where}"
        )
    for layer in sorted({layer for layer, _ in analysis.kernels}):
        kernels = {
            f"head {head + 1}, {axis_name(axis)}": matrix.numpy()
            for (of_layer, axis), heads in sorted(analysis.kernels.items())
            if of_layer == layer
            for head, matrix in enumerate(heads)
        }
        drawn[f"kernels-layer{layer + 1}"] = figures.kernel_maps(kernels)
    return save_figures(drawn, folder)


def known(values: Sequence[float | None]) -> list[float] | None:
    """The values if all of them are; None where one is missing, as after a divergence."""
    numbers = [value for value in values if value is not None]
    return numbers if len(numbers) == len(values) else None


def save_figures(drawn: Mapping[str, Figure], folder: str | Path) -> list[Path]:
    """Write figures as PNG under their names; a file of that name that is not a figure of ours is not replaced."""
    paths = [Path(folder) / f"{name}.png" for name in drawn]
    for path in paths:
        if path.exists() and not is_our_figure(path):
            raise UserError(f"{path} is not a figure of factformer and is not replaced; move it away")
    clean_leftovers(Path(folder))
    for path, figure in zip(paths, drawn.values(), strict=True):
        with whole_file(path) as partial:
            figure.savefig(partial, format="png", dpi=150, metadata={"Software": f"factformer {__version__}"})
    return paths


def _errors(row: Mapping[str, Any]) -> dict[str, str]:
    errors: Any = row.get("relative_l2")
    if not isinstance(errors, Mapping):
        return {}
    return {"errors": ", ".join(f"{name} {value:.4f}" for name, value in errors.items() if value is not None)}
