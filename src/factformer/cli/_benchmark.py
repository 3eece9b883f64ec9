"""Which benchmark a command line means; heavy, so imported by the command when it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from factformer import catalog
from factformer.bundle import load
from factformer.config import apply_overrides, unknown_name
from factformer.errors import UserError
from factformer.evaluation import benchmarks, comparison
from factformer.evaluation.cost import Case
from factformer.evaluation.run import open_held_out, trained_on
from factformer.evaluation.solver import benchmark_solver
from factformer.evaluation.timing import resolve_device
from factformer.models import find_model

Report = Callable[[Mapping[str, Any]], None]
TAKES = {
    "attention": ("--over", "--sizes", "--resolution", "--batch-size", "--precision", "--set"),
    "model": ("--problem", "--resolution", "--models", "--batch-size", "--precision", "--set"),
    "model --compare": ("--cases",),
    "inference": ("--sizes", "--batch-size", "--precision"),
    "solver": ("--data", "--sizes", "--batch-size", "--precision"),
}
"""Options that mean something to a benchmark; the others would be ignored."""
OVER, PROBLEM, PRECISION = "kernel-dim", "kolmogorov_flow", "32-true"


def run_benchmark(
    kind: str,
    *,
    source: str | None,
    data: Path | None,
    over: str | None,
    sizes: Sequence[int],
    problem: str | None,
    resolution: int | None,
    models: Sequence[str] | None,
    batch_size: int | None,
    device: str | None,
    precision: str | None,
    assignments: Sequence[str],
    report: Report,
    compare: bool = False,
    cases: Sequence[str] | None = None,
) -> dict[str, Any]:
    """The result of ``benchmark KIND`` as the command line describes it."""
    if compare and kind != "model":
        raise UserError(f"--compare belongs to benchmark model, got benchmark {kind}")
    full = f"{kind} --compare" if compare else kind
    given = {
        "--data": data,
        "--over": over,
        "--sizes": sizes,
        "--problem": problem,
        "--resolution": resolution,
        "--models": models,
        "--batch-size": batch_size,
        "--precision": precision,
        "--cases": cases,
        "--set": assignments,
    }
    ignored = [option for option, value in given.items() if value and option not in TAKES[full]]
    if ignored:
        raise UserError(f"benchmark {full} has no use for {', '.join(ignored)}")
    if compare:
        return comparison.compare(comparison.settings(cases), device=device, report=report)
    over, problem, forms = over or OVER, problem or PROBLEM, precision
    precision = precision or PRECISION
    target = str(resolve_device(device))
    if kind in ("solver", "inference"):
        if source is None:
            raise UserError(f"benchmark {kind} measures a surrogate: name its run or bundle")
        surrogate = load(source)
        if kind == "inference":
            batches: dict[str, Any] = {"batch_sizes": sizes or [batch_size]} if sizes or batch_size else {}
            return benchmarks.inference(surrogate, device=target, precisions=(precision,), report=report, **batches)
        dataset = open_held_out(data if data is not None else trained_on(source), surrogate.problem)
        return benchmark_solver(
            surrogate,
            dataset,
            resolutions=sizes,
            batch_size=batch_size,
            device=target,
            precision=forms,
            report=report,
        )
    if source is not None:
        raise UserError(f"benchmark {kind} measures fresh models and takes no run or bundle, got {source!r}")
    options = model_options(assignments)
    place: dict[str, Any] = {"device": target, "precision": precision}
    if batch_size is not None:
        place["batch_size"] = batch_size
    if resolution is not None:
        if kind == "attention" and over == "grid":
            raise UserError("--resolution is what --over grid goes through: give --sizes instead")
        place["size"] = resolution
    measured: list[Case]
    if kind == "model":
        names = list(models) if models else catalog.names("models")
        changes = {name: known_options(name, options) for name in names}
        measured = benchmarks.all_models(problem, models=names, overrides=changes, **place)
    elif over == "kernel-dim":
        measured = benchmarks.attention_over_kernel_dim(sizes or benchmarks.KERNEL_DIMS, **place, **options)
    elif over == "grid":
        measured = benchmarks.attention_over_grid(sizes or benchmarks.VOLUME_GRIDS, **place, **options)
    else:
        raise unknown_name("--over", over, ("kernel-dim", "grid"))
    return benchmarks.run_cases(kind, measured, report=report)


def model_options(assignments: Sequence[str]) -> dict[str, Any]:
    """The options in ``model.key=value`` assignments."""
    options: dict[str, Any] = apply_overrides({"model": {}}, assignments)["model"]
    return options


def known_options(model: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Those options that a model of the catalog has; an option that no model has is an error."""
    for key in options:
        everywhere = {name for other in catalog.names("models") for name in find_model(other).config_class.model_fields}
        if key not in everywhere:
            raise unknown_name("key", f"model.{key}", [f"model.{name}" for name in everywhere])
    fields = find_model(model).config_class.model_fields
    return {key: value for key, value in options.items() if key in fields}
