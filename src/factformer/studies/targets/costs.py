"""Cost of a training step: over kernel dimension on a plane, and over grid size in a cube."""

from __future__ import annotations

from dataclasses import replace

from factformer.evaluation import benchmarks
from factformer.evaluation.cost import Case
from factformer.report.tables import Kind
from factformer.studies.cells import Builder, Cell, Costing, Scale, Target
from factformer.studies.scales import TINY_MODEL

COST_KERNEL_DIMS = {"paper": benchmarks.KERNEL_DIMS, "reduced": (32, 64, 128, 256), "tiny": (8, 16)}
COST_GRIDS = {"paper": benchmarks.VOLUME_GRIDS, "reduced": (16, 24, 32, 48), "tiny": (6, 8)}
STEP_COST = (("training_seconds", "forward + backward (s)"), ("training_memory_mb", "peak memory (MB)"))
TINY_COST = {key: TINY_MODEL[key] for key in ("dim", "depth", "heads", "head_dim")}


def cost_case(scale: Scale, model: str, kernel_dim: int) -> Case:
    """A case of the two-dimensional benchmark at the size of a scale."""
    if scale == "tiny":
        kernel_dim = min(kernel_dim, TINY_MODEL["kernel_dim"])
        cases = benchmarks.attention_over_kernel_dim((kernel_dim,), size=16, batch_size=2, **TINY_COST)
    else:
        cases = benchmarks.attention_over_kernel_dim((kernel_dim,))
    return next(case for case in cases if case.model == model)


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
        Cell(label, quantity, Costing(case), key, kind=kind_of(key))
        for label, case in zip(labels, cases, strict=True)
        for key, quantity in STEP_COST
    ]
    return Target(name, title, tuple(cells))


def kind_of(key: str) -> Kind:
    """How a measured number is written."""
    return "megabytes" if key.endswith("_mb") else "seconds"


BUILDERS: dict[str, Builder] = {
    "figure-cost-2d": lambda scale: cost_figure(scale, "figure-cost-2d"),
    "figure-cost-3d": lambda scale: cost_figure(scale, "figure-cost-3d"),
}
