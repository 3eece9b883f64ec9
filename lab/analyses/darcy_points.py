"""What the points of a coarse grid know of Darcy flow: how well the coefficient there determines the solution.

    python -m lab.analyses.darcy_points --samples 40

A surrogate sees the coefficient at every s-th node of the grid that its solution was made on. The interfaces
between those nodes are lost to it, and with them part of the solution, however long it trains. Here the coefficient
is completed from the nodes in several ways and the equation solved again on the full grid; the best of them bounds
from above what is lost. Beside it the solver on the coarse nodes alone. ``results/cpu/darcy_points.json`` keeps the
numbers.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from factformer import metrics
from factformer.evaluation.provenance import provenance, write_json
from factformer.pdes.darcy_flow import HIGH, LOW, Parameters, pde
from lab import ROOT
from lab.campaign.entries import DARCY_RESOLUTIONS

FULL = 421
OUT = ROOT / "results" / "cpu" / "darcy_points.json"


def between(values: Tensor, mode: str) -> Tensor:
    """The nodes' values on the full grid."""
    return functional.interpolate(values[:, None], size=(FULL, FULL), mode=mode, align_corners=True)[:, 0]


def two_materials(values: Tensor) -> Tensor:
    return torch.where(values >= (LOW + HIGH) / 2, HIGH, LOW).to(values.dtype)


COMPLETIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "bilinear, two materials": lambda values: two_materials(between(values, "bilinear")),
    "bicubic, two materials": lambda values: two_materials(between(values, "bicubic")),
    "bilinear": lambda values: between(values, "bilinear"),
    "bilinear in the logarithm": lambda values: between(values.log(), "bilinear").exp(),
}


def solve(coefficient: Tensor) -> Tensor:
    return next(iter(pde.frames(coefficient[..., None], 1, 1.0, Parameters())))[..., 0]


def errors(solution: Tensor, truth: Tensor) -> dict[str, float]:
    each = metrics.relative_l2(solution[:, None, ..., None], truth[:, None, ..., None])
    return {"relative_l2": float(each.mean()), "standard_error": metrics.standard_error(each)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=40)
    parser.add_argument("--seed", type=int, default=3, help="0 is that of the training data")
    options = parser.parse_args()
    began = time.perf_counter()
    generators = [torch.Generator().manual_seed(1000 * options.seed + sample) for sample in range(options.samples)]
    grid = pde.problem(FULL).grid
    coefficient = pde.sample_initial(grid, generators, dtype=torch.float64, device="cpu")[..., 0]
    solution = solve(coefficient)
    rows = {}
    for size in DARCY_RESOLUTIONS:
        step = (FULL - 1) // (size - 1)
        seen, truth = coefficient[:, ::step, ::step], solution[:, ::step, ::step]
        row = {name: errors(solve(complete(seen))[:, ::step, ::step], truth) for name, complete in COMPLETIONS.items()}
        row["solver on these nodes"] = errors(solve(seen), truth)
        rows[str(size)] = row
        print(size, {name: round(scores["relative_l2"], 5) for name, scores in row.items()}, flush=True)
    made = provenance(seed=options.seed, seconds=time.perf_counter() - began)
    write_json(
        OUT,
        {
            "benchmark": "what the points of a coarse grid know of Darcy flow",
            "samples": options.samples,
            "full_grid": FULL,
            "rows": rows,
            **made,
        },
    )


if __name__ == "__main__":
    main()
