"""What a training update takes on a phase space of four axes: `factformer_plus` beside `linear_attention` and `fno`.

    python -m lab.equations.four_axes_cost --out results/cpu/four_axes_cost.json

Bytes of an update with one window are counted (`factformer plan`) at 32⁴ points and at the small grid of the recipe
`vlasov`. At the small grid each model also makes a forward and a backward pass in a process of its own, one thread:
processor seconds are the median of several, the first left out; memory is the largest the process held, less what it
held before. Nothing of this was run on a GPU, and 32⁴ was counted alone.
"""

from __future__ import annotations

import multiprocessing
import resource
import statistics
import time
from typing import Any

import torch

from factformer import recipes
from factformer.batch import Batch
from factformer.evaluation.provenance import provenance, write_json
from factformer.surrogate import Surrogate
from factformer.training.footprint.counted import count
from factformer.training.launch import described_problem
from lab.command_line import out_and_numbers

MODELS = ("factformer_plus", "linear_attention", "fno")
REPEATS = 5


def settings(model: str) -> list[str]:
    return [f"model.name={model}", "training.batch_size=1", "data.path=none"]


def counted(model: str, scale: str) -> dict[str, Any]:
    """Parameters, bytes and operations of an update with one window."""
    experiment = recipes.build("vlasov", scale, settings(model))
    footprint = count(experiment, described_problem(experiment))
    return {
        "parameters": footprint.parameters,
        "gigabytes": round(footprint.training / 1e9, 3),
        "gigaflops": round(footprint.flops / 1e9, 1),
    }


def measured(model: str) -> dict[str, float]:
    """Seconds and memory of a forward and a backward pass in this process."""
    torch.set_num_threads(1)
    experiment = recipes.build("vlasov", "small", settings(model))
    problem = described_problem(experiment)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    surrogate = Surrogate(problem, experiment.model, 1)
    context = torch.randn(1, problem.num_context_frames, *problem.grid.shape, 1)
    seconds = []
    for _ in range(REPEATS + 1):
        began = time.process_time()
        surrogate.zero_grad()
        surrogate(Batch(context=context)).square().mean().backward()
        seconds.append(time.process_time() - began)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {"processor_seconds": round(statistics.median(seconds[1:]), 3), "megabytes": round(memory / 1024)}


def main() -> None:
    options = out_and_numbers(__doc__)
    began, rows = time.perf_counter(), []
    for model in MODELS:
        with multiprocessing.get_context("spawn").Pool(1) as process:
            small = {**counted(model, "small"), "measured": process.apply(measured, (model,))}
        rows.append({"model": model, "12 × 12 × 24 × 24": small, "32 × 32 × 32 × 32": counted(model, "paper")})
        print(rows[-1], flush=True)
    made = provenance(seconds=time.perf_counter() - began, device="cpu")
    write_json(options.out, {"analysis": "four axes, cost of an update", "windows": 1, "rows": rows, **made})


if __name__ == "__main__":
    main()
