"""The benchmarks: attention over kernel size and grid, all models, roll-outs over batch sizes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from factformer import catalog, engine
from factformer._support.documents import finite
from factformer.evaluation.cost import OUT_OF_MEMORY, Case, measure, random_batch
from factformer.evaluation.provenance import provenance
from factformer.evaluation.timing import inference_cost, resolve_device
from factformer.models import find_model
from factformer.pdes import find_pde
from factformer.surrogate import Surrogate

ATTENTION_MODELS = ("factformer", "linear_attention")
PLANE_SIZES = {"dim": 128, "depth": 4, "heads": 8}
"""The paper's hyperparameters for Kolmogorov flow, which its two-dimensional benchmark uses."""
VOLUME_SIZES = {"dim": 128, "depth": 4, "heads": 6, "kernel_dim": 192}
"""Those for isotropic turbulence, which its three-dimensional benchmark uses."""
KERNEL_DIMS = (32, 64, 128, 256, 512)
VOLUME_GRIDS = (32, 48, 64, 80, 96)

Report = Callable[[dict[str, Any]], None]


def attention_over_kernel_dim(
    kernel_dims: Sequence[int] = KERNEL_DIMS,
    *,
    size: int = 128,
    batch_size: int = 4,
    device: str = "cpu",
    precision: str = "32-true",
    **sizes: int,
) -> list[Case]:
    """Factorized against linear attention on a plane while the kernel grows (the paper's appendix)."""
    problem, given = find_pde("kolmogorov_flow").problem(size), {**PLANE_SIZES, **sizes}
    place: Any = {"batch_size": batch_size, "marching_steps": 4, "device": device, "precision": precision}
    return [
        Case(f"{model}, kernel dimension {kernel_dim}", problem, model, {**given, "kernel_dim": kernel_dim}, **place)
        for kernel_dim in kernel_dims
        for model in ATTENTION_MODELS
    ]


def attention_over_grid(
    grid_sizes: Sequence[int] = VOLUME_GRIDS,
    *,
    batch_size: int = 1,
    device: str = "cpu",
    precision: str = "32-true",
    **sizes: int,
) -> list[Case]:
    """Factorized against linear attention in a cube while the grid grows (the paper's appendix)."""
    turbulence = find_pde("isotropic_turbulence")
    place: Any = {"batch_size": batch_size, "marching_steps": 2, "device": device, "precision": precision}
    return [
        Case(f"{model}, {size}³ points", turbulence.problem(size), model, {**VOLUME_SIZES, **sizes}, **place)
        for size in grid_sizes
        for model in ATTENTION_MODELS
    ]


def all_models(
    problem: str = "kolmogorov_flow",
    *,
    size: int = 64,
    models: Sequence[str] | None = None,
    batch_size: int = 4,
    marching_steps: int | None = None,
    device: str = "cpu",
    precision: str = "32-true",
    overrides: dict[str, dict[str, Any]] | None = None,
) -> list[Case]:
    """Every model of the catalog on one problem, in its default sizes or with ``overrides`` by model name."""
    target = find_pde(problem).problem(size)
    steps = marching_steps or (4 if target.num_context_frames else 1)
    chosen = catalog.names("models") if models is None else models
    for name in chosen:
        find_model(name)
    return [
        Case(
            name,
            target,
            name,
            (overrides or {}).get(name, {}),
            batch_size=batch_size,
            marching_steps=steps,
            device=device,
            precision=precision,
        )
        for name in chosen
    ]


def run_cases(name: str, cases: Sequence[Case], *, report: Report | None = None, **options: Any) -> dict[str, Any]:
    """Measure ``cases`` one after the other; ``report`` hears of each row as it is finished."""
    began = time.perf_counter()
    device = resolve_device(cases[0].device if cases else "cpu")
    rows = []
    for case in cases:
        rows.append(finite(measure(case, **options)))
        if report is not None:
            report(rows[-1])
    return {
        "benchmark": name,
        "rows": rows,
        **provenance(seed=0, seconds=time.perf_counter() - began, device=device),
    }


def inference(
    surrogate: Surrogate,
    *,
    batch_sizes: Sequence[int] = (1, 4, 10),
    num_frames: int | None = None,
    precisions: Sequence[str] = ("32-true",),
    device: torch.device | str | None = None,
    report: Report | None = None,
) -> dict[str, Any]:
    """Latency and throughput of roll-outs of a surrogate, over batch sizes and precisions."""
    began = time.perf_counter()
    target = resolve_device(device)
    problem = surrogate.problem
    frames = num_frames or problem.horizon
    engine.attach(surrogate)
    surrogate = surrogate.to(target).eval()
    generator = torch.Generator().manual_seed(0)
    rows: list[dict[str, Any]] = []
    for precision in precisions:
        for size in batch_sizes:
            batch = random_batch(surrogate, size, frames, generator)
            row: dict[str, Any] = {"batch_size": size, "precision": precision, "num_frames": frames}
            try:
                cost = inference_cost(surrogate, batch, frames, precision=precision)
            except torch.OutOfMemoryError:
                row["status"] = OUT_OF_MEMORY
            else:
                row |= {
                    "status": "ok",
                    "seconds": cost.seconds,
                    "seconds_per_sequence": cost.seconds / size,
                    "frames_per_second": size * frames / cost.seconds,
                    "peak_memory_mb": cost.peak_memory_mb,
                }
            rows.append(finite(row))
            if report is not None:
                report(rows[-1])
    return {
        "benchmark": "inference",
        "model": surrogate.config.name,
        "problem": problem.name,
        "grid": list(problem.grid.shape),
        "rows": rows,
        **provenance(seed=0, seconds=time.perf_counter() - began, device=target),
    }
