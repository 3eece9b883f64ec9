"""Time by kernel of a call and of an update of `factformer_plus` with patches, and of its calls in a row.

    python -m lab.kernel_timings.step_kernels --out results/speed/patched_kernels_h200.json

Calls predict ten flows, updates see four windows, as the recipe does. The profile is of one call without a graph.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from factformer import engine
from factformer.evaluation.baselines import PLANE
from lab.checks.common import DEVICE, TINY, Step, forget, keep, options, times

CASES: dict[str, dict[str, Any]] = {
    "patch 2": {"patch": 2},
    "patch 2, depth 8": {"patch": 2, "depth": 8},
    "patch 2, depth 6": {"patch": 2, "depth": 6},
    "patch 1": {},
    "patch 4": {"patch": 4},
}
ROWS = 40


def kernels(step: Step, mode: str) -> dict[str, Any]:
    """The kernels of one call that is not recorded, the longest first."""
    step.graphs.enabled = False
    call = getattr(step, mode)
    if mode == "infer":

        def call() -> None:
            grid = step.surrogate.problem.grid
            with torch.inference_mode(), step._autocast():
                engine.predict(step.surrogate, step.batch, step.steps, grid)

    call()
    activities = [torch.profiler.ProfilerActivity.CUDA if DEVICE == "cuda" else torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as result:
        call()
        if DEVICE == "cuda":
            torch.cuda.synchronize()
    key = "self_device_time_total" if DEVICE == "cuda" else "self_cpu_time_total"
    rows = sorted(result.key_averages(), key=lambda row: -getattr(row, key))
    return {
        "microseconds": sum(getattr(row, key) for row in rows),
        "launches": sum(row.count for row in rows),
        "rows": [[round(getattr(row, key), 1), row.count, row.key[:70]] for row in rows[:ROWS]],
    }


def main() -> None:
    chosen, began, found = options(__doc__), time.perf_counter(), {}
    shape, sizes = ((16, 16), TINY) if chosen.tiny else ((128, 128), PLANE)
    for name, changes in CASES.items():
        model = {**sizes, "local_kernel": 7, "name": "factformer_plus", **changes}
        row: dict[str, Any] = {}
        for mode, batch in (("infer", 10), ("train", 4)):
            step = Step(shape, batch, 1, model, frames=2)
            row |= times(step, (mode,), seconds=0.1 if chosen.tiny else 0.5)
            if "4" not in name and "6" not in name:
                row[f"{mode}_kernels"] = kernels(step, mode)
            del step
            forget()
        found[name] = row
        print(name, {key: value for key, value in row.items() if "kernels" not in key}, flush=True)
        for mode in ("infer", "train"):
            print(*row.get(f"{mode}_kernels", {}).get("rows", [])[:25], sep="\n", flush=True)
    keep(chosen.out, "step_kernels", began, cases=found)


if __name__ == "__main__":
    main()
