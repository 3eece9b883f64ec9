"""One surrogate for several time steps against specialists, and how its increments should scale with the step.

    python -m lab.analyses.time_steps --out results/cpu/time_steps.json

Burgers and advection in one dimension. One surrogate is trained at strides 1 to 4, a specialist at each of them, all
with as many updates. The table gives the relative L2 error of 4-frame roll-outs of unseen starts at each stride and at
2.5, where nobody was trained.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

import factformer
from factformer import Grid
from factformer.batch import Batch
from factformer.evaluation.provenance import provenance
from factformer.problem import STEP
from factformer.surrogate import Surrogate
from lab.analyses.conditioning import POINTS, smooth_starts

DT, FRAMES, STRIDES = 0.05, 33, (1, 2, 3, 4)
CASES: dict[str, dict[str, Any]] = {"burgers": {"viscosity": 0.1}, "advection_diffusion": {"velocity": 1.0}}
POWERS = {"root": 0.5, "linear": 1.0, "none": 0.0}
"""Increments are multiplied by this power of the step; ours is the root."""
SIZES = {"model.dim": 32, "model.depth": 2, "model.heads": 4, "model.head_dim": 8, "model.kernel_dim": 16}


def trained(pde: str, stride: int | list[int], seed: int, updates: int) -> Surrogate:
    start = smooth_starts(48, torch.Generator().manual_seed(1))
    frames = factformer.simulate(pde, start, FRAMES, DT, **CASES[pde]).float()
    return factformer.fit(
        frames,
        grid=Grid(POINTS, 2 * torch.pi, True),
        frame_dt=DT,
        fields=["u"],
        num_context_frames=1,
        updates=updates,
        progress=False,
        settings={**SIZES, "training.seed": seed, "protocol.stride": stride},
    ).eval()


def error(surrogate: Surrogate, pde: str, stride: float) -> float:
    start = smooth_starts(32, torch.Generator().manual_seed(2))
    truth = factformer.simulate(pde, start, 5, stride * DT, **CASES[pde]).float()
    step = stride * DT if STEP in surrogate.problem.parameters else None
    with torch.no_grad():
        found = torch.stack(list(factformer.rollout(surrogate, truth[:, :1], 4, frame_dt=step)), dim=1)
    return float((found - truth[:, 1:]).norm() / truth[:, 1:].norm())


@contextlib.contextmanager
def scaled(power: float) -> Iterator[None]:
    def scale(self: Surrogate, batch: Batch) -> Tensor:
        assert batch.parameters is not None
        step = batch.parameters[:, -1] / self.problem.frame_dt
        return self.normalizer.increment_std * step.reshape(-1, 1, 1, 1) ** power

    with mock.patch.object(Surrogate, "increment_scale", scale):
        yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--updates", type=int, default=600)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--increments", nargs="+", default=list(POWERS), choices=list(POWERS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    began, rows = time.perf_counter(), []
    for pde in CASES:
        for seed in range(options.seeds):
            for name in options.increments:
                with scaled(POWERS[name]):
                    surrogate = trained(pde, list(STRIDES), seed, options.updates)
                    errors = {str(stride): error(surrogate, pde, stride) for stride in (*STRIDES, 2.5)}
                rows.append({"problem": pde, "seed": seed, "increments": name, "errors": errors})
                print(rows[-1], flush=True)
            alone = {str(s): error(trained(pde, s, seed, options.updates), pde, s) for s in STRIDES}
            rows.append({"problem": pde, "seed": seed, "increments": "specialists", "errors": alone})
            print(rows[-1], flush=True)
    result = {
        "benchmark": __doc__.split("\n")[0],
        "updates": options.updates,
        "rows": rows,
        **provenance(seed=0, seconds=time.perf_counter() - began, device=torch.device("cpu")),
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
