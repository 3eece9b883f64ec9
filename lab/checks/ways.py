"""One network executed in every way: kernels for each kind of card, compiled, eager; times and errors in one run.

    python -m lab.checks.ways --out results/speed/ways_h200.json

Kernels that are restricted to less shared memory and no TMA compute what other cards would. Errors are relative to
the plain layers in float32. The wide network is beyond the kernels: there the stages compile.
"""

from __future__ import annotations

import time
from typing import Any

from factformer.engine import Mode
from factformer.evaluation.baselines import BOX, PLANE
from factformer.kernels._triton.limits import FULL, MEDIUM, SMALL, Limits
from lab.checks.common import DEVICE, TINY, Step, forget, in_single_precision, keep, options, relative, times

CASES: dict[str, tuple[tuple[int, ...], int, int, dict[str, Any]]] = {
    "128² × 4": ((128, 128), 4, 4, PLANE),
    "64³ × 4": ((64, 64, 64), 4, 2, BOX),
    "plus, 128² × 4": ((128, 128), 4, 1, {**PLANE, "name": "factformer_plus"}),
    "wide, 128² × 4": ((128, 128), 4, 4, {**PLANE, "dim": 256}),
}
SMALLER: dict[str, tuple[tuple[int, ...], int, int, dict[str, Any]]] = {
    "16² × 2": ((16, 16), 2, 2, TINY),
    "plus, 16² × 2": ((16, 16), 2, 1, {**TINY, "name": "factformer_plus"}),
}
WAYS: dict[str, tuple[Mode | None, Limits | None]] = {
    "227 KB and TMA": (None, FULL),
    "163 KB, no TMA": (None, MEDIUM),
    "99 KB, no TMA": (None, SMALL),
    "compiled": ("compiled", None),
    "eager": ("off", None),
}


def main() -> None:
    chosen = options(__doc__, ("--only", {"nargs": "+", "default": [], "metavar": "CASE"}))
    began, rows = time.perf_counter(), []
    for label, (shape, batch, steps, sizes) in (SMALLER if chosen.tiny else CASES).items():
        if chosen.only and label not in chosen.only:
            continue
        exact = in_single_precision(shape, batch, steps, sizes)
        for name, (mode, limits) in WAYS.items():
            if mode == "compiled" and DEVICE == "cpu":  # takes minutes and says nothing of a GPU
                continue
            row: dict[str, Any] = {"case": label, "way": name}
            step = Step(shape, batch, steps, sizes, mode=mode, limits=limits, optimizer=False)
            row |= times(step, seconds=0.1 if chosen.tiny else 0.5)
            if row["status"] == "ok":
                pairs = zip(("prediction", "gradient"), step.gradients(), exact, strict=True)
                row |= {f"{what}_error": relative(a, b.to(a.device)) for what, a, b in pairs}
            rows.append(row)
            print(row, flush=True)
            del step
            forget()
        keep(chosen.out, "ways", began, rows=rows)  # what is known so far


if __name__ == "__main__":
    main()
