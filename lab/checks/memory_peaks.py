"""Peaks of memory and times of updates on growing boxes, beside what `factformer plan` counts for them.

    python -m lab.checks.memory_peaks --out results/speed/memory_h200.json
    python -m lab.checks.memory_peaks --known results/speed/memory_h200.json --out results/speed/memory_more_h200.json

Turbulence with three velocities and a pressure, one window, in bfloat16: fused and plain, without patches to 192³, with
patches of 2 to 256³, and a prediction alone on 512³ points. What does not fit says so. Rows that a file holds already
are left out.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from factformer import recipes
from factformer._support.documents import read_json
from factformer.errors import UserError
from factformer.evaluation.baselines import BOX
from factformer.training.footprint.counted import count
from factformer.training.launch import described_problem
from lab.checks.common import DEVICE, TINY, Step, forget, keep, options, times

CASES = (
    *((size, 1, mode) for size in (64, 96, 128, 160, 192) for mode in ("fused", "plain")),
    *((size, 2, mode) for size in (128, 192, 256) for mode in ("fused", "plain")),
)
SMALL = ((8, 1, "fused"), (8, 1, "plain"), (8, 2, "plain"))
PREDICTED = ((512, 2), (512, 1))


def counted(size: int, patch: int, sizes: dict[str, Any]) -> dict[str, Any]:
    """What the plan says of such an update."""
    words = [f"model.{key}={value}" for key, value in {**sizes, "patch": patch}.items()]
    words += ["training.batch_size=1", "training.precision=bf16-mixed", "protocol.pushforward=0"]
    experiment = recipes.build("turbulence", "paper", [*words, "training.ema_decay=null"])
    found = count(experiment, described_problem(experiment, (size,)))
    return {"plain_bytes": found.plain, "fused_bytes": found.fused, "inference_bytes": found.inference}


def main() -> None:
    chosen = options(__doc__, ("--known", {"type": Path, "default": None}))
    began, rows = time.perf_counter(), []
    known = set() if chosen.known is None else {_key(row) for row in read_json(chosen.known)["rows"]}
    sizes: dict[str, Any] = TINY if chosen.tiny else BOX
    for size, patch, way in SMALL if chosen.tiny else CASES:
        if (size, patch, way) in known:
            continue
        row: dict[str, Any] = {"grid": [size] * 3, "patch": patch, "way": way}
        row |= _tried(size, {**sizes, "patch": patch}, way, ("infer", "train"))
        try:
            row["counted"] = counted(size, patch, sizes)
        except UserError as error:
            row["counted"] = str(error)
        rows.append(row)
        print(row, flush=True)
        keep(chosen.out, "memory_peaks", began, rows=rows)  # what is known so far
    for size, patch in [(8, 2)] if chosen.tiny else PREDICTED:
        row = {"grid": [size] * 3, "patch": patch, "way": "fused", "prediction alone": True}
        if DEVICE == "cuda":
            torch.cuda.reset_peak_memory_stats()
        row |= _tried(size, {**sizes, "patch": patch}, "fused", ("infer",))
        if DEVICE == "cuda":
            row["infer_gb"] = torch.cuda.max_memory_allocated() / 1e9
        rows.append(row)
        print(row, flush=True)
        keep(chosen.out, "memory_peaks", began, rows=rows)


def _key(row: dict[str, Any]) -> tuple[int, int, str]:
    return row["grid"][0], row["patch"], row["way"]


def _tried(size: int, sizes: dict[str, Any], way: str, modes: tuple[str, ...]) -> dict[str, Any]:
    """Times of a case, or why there are none."""
    try:
        step = Step((size,) * 3, 1, 2, sizes, channels=4, mode="off" if way == "plain" else None)
        return times(step, modes, seconds=0.1)
    except torch.OutOfMemoryError:
        return {"status": "OOM"}
    finally:
        step = None  # type: ignore[assignment]
        forget()


if __name__ == "__main__":
    main()
