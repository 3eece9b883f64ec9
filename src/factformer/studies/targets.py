"""The targets: tables and figures of the paper as lists of cells.

Where the paper gives a figure without numbers, its column stays empty.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from factformer.config import unknown_name
from factformer.evaluation import benchmarks
from factformer.evaluation.cost import Case
from factformer.report import paper
from factformer.report.tables import Kind
from factformer.studies.cells import Cell, Costing, Looking, Scale, Target, Training
from factformer.studies.scales import TINY_MODEL

TABLE_RECIPES = {"table1": "kolmogorov", "table2": "turbulence", "table3": "smoke"}
TABLE_NOTES = {
    "table2": "The paper's numbers were made on data from the start of its released generator (the preset `released` "
    "of `isotropic_turbulence`); the data of this table start as Rogallo published.",
}
SHORT = {paper.AR: "AR", paper.LM: "LM"}
DARCY_MODELS = ("factformer", "fno", "ffno", "dilated_resnet", "galerkin_transformer")
DARCY_RESOLUTIONS = {"paper": (43, 61, 85, 141, 211, 421), "reduced": (43, 85, 169), "tiny": (15, 29)}
HEADS = {"paper": (1, 2, 4, 8, 12), "reduced": (1, 2, 4, 8), "tiny": (1, 2)}
KERNEL_DIMS = {"paper": (32, 64, 128, 256), "reduced": (32, 64, 128), "tiny": (4, 8)}
COST_KERNEL_DIMS = {"paper": benchmarks.KERNEL_DIMS, "reduced": (32, 64, 128, 256), "tiny": (8, 16)}
COST_GRIDS = {"paper": benchmarks.VOLUME_GRIDS, "reduced": (16, 24, 32, 48), "tiny": (6, 8)}
SEEDS = (0, 1, 2)
LINEAR_SHARE = 0.05
"""The paper: less than 5 % of the singular values of linear attention hold over 90 % of the energy."""
STEP_COST = (("training_seconds", "forward + backward (s)"), ("training_memory_mb", "peak memory (MB)"))
TINY_COST = {key: TINY_MODEL[key] for key in ("dim", "depth", "heads", "head_dim")}


def benchmark_table(name: str) -> Target:
    """Tables 1 to 3: four models under two protocols, errors per field group, inference time, size."""
    table, recipe = paper.BENCHMARKS[name], TABLE_RECIPES[name]
    cells: list[Cell] = []
    for result in table.results:
        work = Training(recipe, result.model, result.protocol)
        row = f"{result.model} {SHORT[result.protocol]}"
        for group, (average, final) in result.errors.items():
            base = f"fields.{group}"
            cells += [
                Cell(
                    row,
                    f"{group}, average error",
                    work,
                    f"{base}.relative_l2",
                    average,
                    error_path=f"{base}.standard_error",
                ),
                Cell(
                    row,
                    f"{group}, final error",
                    work,
                    f"{base}.relative_l2_final",
                    final,
                    error_path=f"{base}.standard_error_final",
                ),
            ]
        cells += [
            Cell(row, "inference time (s)", work, "seconds_per_batch", result.seconds_per_batch, "seconds"),
            Cell(row, "parameters", work, "parameters", result.parameters, "count"),
        ]
    title = f"Table {name[-1]}: {table.title.lower()}, relative L2 errors and cost"
    return Target(name, title, tuple(cells), TABLE_NOTES.get(name, ""))


def at_128(scale: Scale, model: str = "factformer", *settings: str) -> Training:
    """A Kolmogorov run of the paper's ablations, which are at 128²; smaller scales take their own grid."""
    return Training("kolmogorov", model, resolution=128 if scale == "paper" else None, settings=settings)


def table4(scale: Scale) -> Target:
    """Factorized against linear attention: accuracy and cost."""
    cells: list[Cell] = []
    for published, model in zip(paper.TABLE_4[:2], benchmarks.ATTENTION_MODELS, strict=True):
        row = f"{published.attention} attention"
        case = cost_case(scale, model, 128)
        error = "fields.vorticity.relative_l2"
        cells.append(
            Cell(
                row,
                "average error",
                at_128(scale, model),
                error,
                published.relative_l2,
                error_path="fields.vorticity.standard_error",
            )
        )
        for key, title in (
            ("encoder_seconds", "encoder, forward (s)"),
            ("propagator_seconds", "propagator, forward (s)"),
            *STEP_COST,
        ):
            cells.append(Cell(row, title, Costing(case), key, getattr(published, key), _kind(key)))
    note = "The paper's einsum variant of linear attention computes the same products; ours has one form."
    return Target("table4", "Table 4: factorized against linear attention at 128²", tuple(cells), note)


def cost_case(scale: Scale, model: str, kernel_dim: int) -> Case:
    """A case of the two-dimensional benchmark at the size of a scale."""
    if scale == "tiny":
        kernel_dim = min(kernel_dim, TINY_MODEL["kernel_dim"])
        cases = benchmarks.attention_over_kernel_dim((kernel_dim,), size=16, batch_size=2, **TINY_COST)
    else:
        cases = benchmarks.attention_over_kernel_dim((kernel_dim,))
    return next(case for case in cases if case.model == model)


def figure_darcy_resolutions(scale: Scale) -> Target:
    cells = [
        Cell(
            model,
            f"error at {size} points per axis",
            Training("darcy", model, "steady", size),
            "fields.solution.relative_l2",
            error_path="fields.solution.standard_error",
        )
        for model in DARCY_MODELS
        for size in DARCY_RESOLUTIONS[scale]
    ]
    return Target("figure-darcy-resolutions", "Darcy flow: error against training resolution", tuple(cells))


def figure_error_trend(scale: Scale) -> Target:
    """The error of every model frame by frame; shares its runs with Table 1.

    The runs at 128² are left out where a scale has them in Table 1 already, since it has one grid for both.
    """
    cells = [
        replace(cell, quantity="average error")
        for cell in benchmark_table("table1").cells
        if cell.path == "fields.vorticity.relative_l2"
    ]
    for model in benchmarks.ATTENTION_MODELS:
        published, work = paper.TABLE_4[benchmarks.ATTENTION_MODELS.index(model)], at_128(scale, model)
        if any(cell.work == work for cell in cells):
            continue
        cells.append(
            Cell(
                f"{model} LM, 128²",
                "average error",
                work,
                "fields.vorticity.relative_l2",
                published.relative_l2,
                error_path="fields.vorticity.standard_error",
            )
        )
    return Target("figure-error-trend", "Kolmogorov flow: error frame by frame", tuple(cells))


def ablation(scale: Scale, name: str, title: str, key: str, values: Mapping[str, tuple[int, ...]]) -> Target:
    cells = [
        Cell(
            f"{value}",
            "average error",
            at_128(scale, "factformer", f"model.{key}={value}"),
            "fields.vorticity.relative_l2",
            error_path="fields.vorticity.standard_error",
        )
        for value in values[scale]
    ]
    return Target(name, title, tuple(cells))


def seeds(scale: Scale) -> Target:
    cells = [
        Cell(
            f"seed {seed}",
            quantity,
            at_128(scale, "factformer", f"training.seed={seed}"),
            f"fields.vorticity.{key}",
            error_path="fields.vorticity.standard_error" * (key == "relative_l2"),
        )
        for seed in SEEDS
        for quantity, key in (("average error", "relative_l2"), ("final error", "relative_l2_final"))
    ]
    return Target("seeds", "Influence of the random seed", tuple(cells))


def cost_figure(scale: Scale, name: str) -> Target:
    """Time and memory of a training step over kernel dimension on a plane, or over grid size in a cube."""
    if name == "figure-cost-2d":
        title = "Cost over kernel dimension at 128²"
        cases = [
            case
            if scale != "tiny"
            else replace(
                cost_case(scale, case.model, 8), overrides={**TINY_COST, "kernel_dim": case.overrides["kernel_dim"]}
            )
            for case in benchmarks.attention_over_kernel_dim(COST_KERNEL_DIMS[scale])
        ]
        labels = [f"{case.model}, kernel dimension {case.overrides['kernel_dim']}" for case in cases]
    else:
        title = "Cost over grid size in three dimensions"
        small = {**TINY_COST, "kernel_dim": 8} if scale == "tiny" else {}
        cases = benchmarks.attention_over_grid(COST_GRIDS[scale], **small)
        labels = [f"{case.model}, {case.problem.grid.shape[0]}³" for case in cases]
    cells = [
        Cell(label, quantity, Costing(case), key, kind=_kind(key))
        for label, case in zip(labels, cases, strict=True)
        for key, quantity in STEP_COST
    ]
    return Target(name, title, tuple(cells))


def attention_target(scale: Scale, name: str) -> Target:
    """What the learned kernels look like: spectra of both kinds of attention, or stationarity."""
    depth, num_axes = (TINY_MODEL["depth"] if scale == "tiny" else 4), 2
    factorized = Looking(at_128(scale, "factformer"))
    quantity = "singular values with 90 % of the energy (fraction)"
    cells: list[Cell] = []
    for index in range(depth * num_axes):
        row = f"factorized, layer {index // num_axes + 1}, axis {index % num_axes + 1}"
        base = f"kernels.{index}"
        if name == "spectra":
            cells.append(Cell(row, quantity, factorized, f"{base}.fraction_for_energy", kind="number"))
        else:
            cells += [
                Cell(row, "stationarity", factorized, f"{base}.stationarity", kind="number"),
                Cell(row, "symmetry", factorized, f"{base}.symmetry", kind="number"),
            ]
    if name == "kernels":
        return Target(name, "Learned kernels: stationarity and symmetry", tuple(cells))
    linear = Looking(at_128(scale, "linear_attention"))
    cells += [
        Cell(
            f"linear, layer {layer + 1}",
            quantity,
            linear,
            f"kernels.{layer}.fraction_for_energy",
            LINEAR_SHARE,
            "number",
        )
        for layer in range(depth)
    ]
    note = "For linear attention the paper states an upper bound of 5 %, out of 1024 singular values."
    return Target(name, "Spectra of attention kernels", tuple(cells), note)


def _kind(key: str) -> Kind:
    return "megabytes" if key.endswith("_mb") else "seconds"


BUILDERS: dict[str, Callable[[Scale], Target]] = {
    "table1": lambda scale: benchmark_table("table1"),
    "table2": lambda scale: benchmark_table("table2"),
    "table3": lambda scale: benchmark_table("table3"),
    "table4": table4,
    "figure-darcy-resolutions": figure_darcy_resolutions,
    "figure-error-trend": figure_error_trend,
    "ablation-heads": lambda scale: ablation(
        scale, "ablation-heads", "Ablation on the number of heads", "heads", HEADS
    ),
    "ablation-kernel-dim": lambda scale: ablation(
        scale, "ablation-kernel-dim", "Ablation on the kernel dimension", "kernel_dim", KERNEL_DIMS
    ),
    "seeds": seeds,
    "figure-cost-2d": lambda scale: cost_figure(scale, "figure-cost-2d"),
    "figure-cost-3d": lambda scale: cost_figure(scale, "figure-cost-3d"),
    "spectra": lambda scale: attention_target(scale, "spectra"),
    "kernels": lambda scale: attention_target(scale, "kernels"),
}


def find_target(name: str, scale: Scale) -> Target:
    """The target with this name at a scale; an unknown name lists the choices."""
    if name not in BUILDERS:
        raise unknown_name("target", name, BUILDERS)
    return BUILDERS[name](scale)


def targets(scale: Scale = "paper") -> dict[str, Target]:
    """All targets by name."""
    return {name: build(scale) for name, build in BUILDERS.items()}
