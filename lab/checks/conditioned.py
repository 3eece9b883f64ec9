"""An update with parameters, static fields, forcing and a mask against a plain one, in one run.

    python -m lab.checks.conditioned --out results/speed/conditioned_h200.json
    python -m lab.checks.conditioned --frames 2 --out results/speed/conditioned_two_frames_h200.json

Several channels are lifted frame by frame before they meet, so that the number of context frames matters.
A conditioned and masked update should take at most 1.10 times as long as a plain one.
"""

from __future__ import annotations

import time
from typing import Any

from factformer import Field
from factformer.evaluation.baselines import BOX, PLANE
from lab.checks.common import TINY, Step, forget, keep, options, times

CASES: dict[str, tuple[tuple[int, ...], int, int, dict[str, Any]]] = {
    "128² × 4": ((128, 128), 4, 4, PLANE),
    "64³ × 4": ((64, 64, 64), 4, 2, BOX),
}
SMALL = {"16² × 2": ((16, 16), 2, 2, TINY), "8³ × 2": ((8, 8, 8), 2, 2, TINY)}
PARTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "parameters": {"parameters": ("reynolds", "wavenumber")},
    "mask": {"masked": True},
    "parameters and mask": {"parameters": ("reynolds", "wavenumber"), "masked": True},
    "forcing": {"forcing": (Field("inflow"),)},
    "all": {
        "parameters": ("reynolds", "wavenumber"),
        "masked": True,
        "forcing": (Field("inflow"),),
        "static": (Field("depth"),),
    },
}
MODELS = ("factformer", "factformer_plus")


def main() -> None:
    chosen = options(__doc__, ("--frames", {"type": int, "default": 10}))
    began, rows = time.perf_counter(), []
    for label, (shape, batch, steps, sizes) in (SMALL if chosen.tiny else CASES).items():
        for model in MODELS:
            plain: dict[str, Any] = {}
            for name, parts in PARTS.items():
                step = Step(shape, batch, steps, {**sizes, "name": model}, parts, frames=chosen.frames)
                found = times(step, seconds=0.1 if chosen.tiny else 0.5)
                plain = plain or found
                ratios = {
                    f"{mode}_ratio": found[f"{mode}_ms"] / plain[f"{mode}_ms"]
                    for mode in ("infer", "train")
                    if f"{mode}_ms" in found and f"{mode}_ms" in plain
                }
                rows.append({"case": label, "model": model, "parts": name, **found, **ratios})
                print(rows[-1], flush=True)
                del step
                forget()
            keep(chosen.out, "conditioned", began, limit=1.10, frames=chosen.frames, rows=rows)  # what is known so far


if __name__ == "__main__":
    main()
