"""How much a disturbance of the context has grown after one call of a bundle, by the axes along which it varies.

    python -m lab.analyses.sensitivity kolmogorov-128 other/bundle --set num_frames=21

Noise of half a percent of the field's deviation, drawn anew in every frame, is added to contexts made here; a gain
above one is an error that feeds on itself. ``--out FILE`` keeps the numbers as JSON.
"""

from __future__ import annotations

import argparse
import time
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import factformer
from factformer.evaluation.provenance import provenance, write_json
from factformer.surrogate import Surrogate
from lab.analyses.new_solutions import new_solutions

LEVEL = 0.005


def first_frame(surrogate: Surrogate, context: Tensor) -> Tensor:
    return next(iter(factformer.rollout(surrogate, context, num_frames=1)))


@torch.no_grad()
def gains(surrogate: Surrogate, context: Tensor, seed: int) -> dict[str, float]:
    """Size of what a disturbance does to the next frame over its own size, for every set of axes."""
    generator = torch.Generator().manual_seed(seed)
    batch, num_frames, *grid, channels = context.shape
    deviation = context.std(dim=(0, 1, *range(2, 2 + len(grid))))
    undisturbed = first_frame(surrogate, context)
    result = {}
    for axes in product((True, False), repeat=len(grid)):
        sizes = [n if varies else 1 for n, varies in zip(grid, axes, strict=True)]
        disturbance = LEVEL * deviation * torch.randn((batch, num_frames, *sizes, channels), generator=generator)
        change = first_frame(surrogate, context + disturbance) - undisturbed
        name = ", ".join(f"x{m}" for m, varies in enumerate(axes) if varies) or "nowhere"
        result[name] = float((change / deviation).square().mean().sqrt() / LEVEL)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundles", nargs="+", help="of the same problem")
    parser.add_argument("--label", action="append", default=[], help="what to call each of them")
    parser.add_argument("--trajectories", type=int, default=2)
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--set", action="append", default=[], help="of the solver's preset")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    began = time.perf_counter()
    surrogates = [factformer.load(name) for name in options.bundles]
    problem = surrogates[0].problem
    with new_solutions(problem, options.trajectories, options.seed, options.set) as dataset:
        context = dataset.read(slice(None), slice(0, problem.num_context_frames))
    rows: list[dict[str, Any]] = []
    for label, surrogate in zip(options.label or options.bundles, surrogates, strict=True):
        trained = {key: surrogate.provenance[key] for key in ("command", "updates", "dataset")}
        rows.append({"bundle": label, **trained, "gain": gains(surrogate, context, 0)})
        print(label, {name: round(gain, 2) for name, gain in rows[-1]["gain"].items()}, flush=True)
    if options.out:
        made = provenance(seed=options.seed, seconds=time.perf_counter() - began)
        what = "growth in one call of noise in the context, by the axes along which it varies"
        write_json(
            options.out,
            {"benchmark": what, "level": LEVEL, "rows": rows, "dataset_fingerprint": dataset.fingerprint, **made},
        )


if __name__ == "__main__":
    main()
