"""Why one surrogate for several time steps falls behind specialists at the longest: changes, one at a time.

    python -m lab.parameters.long_steps --problem burgers --updates 1500 --seeds 0 1 --out results/cpu/long_steps.json

The problems, sizes and scores are those of `lab.analyses.time_steps`. ``specialist`` is trained at the longest stride
alone; other rows are one surrogate for strides 1 to 4, as it is by default or with one change.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

import factformer
from factformer.batch import Batch
from factformer.data.windows import Windows
from factformer.evaluation.provenance import provenance, write_json
from factformer.nn.conditions import EMBEDDING_DIM
from factformer.problem import STEP
from factformer.surrogate import Surrogate
from factformer.training.loop import trainer
from lab.analyses import time_steps
from lab.analyses.conditioning import smooth_starts

LONGEST = max(time_steps.STRIDES)
WIDE = {"model.dim": 64, "model.head_dim": 16, "model.kernel_dim": 32}
VARIANTS = {
    "specialist": "trained at stride 4 alone",
    "default": "every stride drawn as often, increments grow with the root of the step",
    "proportional": "strides drawn in proportion to their length",
    "measured": "increments grow with the step as in the data",
    "gain": "the size of increments is learned as a function of the step",
    "wide": "twice the channels, with heads and kernels twice as wide",
    "wide specialist": "the same network, trained at stride 4 alone",
}


class Proportional(Windows):
    """Windows of stride s count s times."""

    def __init__(self, count: int, num_frames: int, length: int, stride: int = 1, frame_stride: Any = 1) -> None:
        if not isinstance(frame_stride, int):
            frame_stride = tuple(s for s in frame_stride for _ in range(s))
        super().__init__(count, num_frames, length, stride, frame_stride)


def measured_power(pde: str) -> float:
    """The power of the step that the increments of the training data grow with, from the shortest to the longest."""
    start = smooth_starts(48, torch.Generator().manual_seed(1))
    frames = factformer.simulate(pde, start, time_steps.FRAMES, time_steps.DT, **time_steps.CASES[pde])
    short, long = ((frames[:, s:] - frames[:, :-s]).std() for s in (1, LONGEST))
    return float((long / short).log()) / math.log(LONGEST)


@contextlib.contextmanager
def learned_gain() -> Iterator[None]:
    build, scale = Surrogate.__init__, Surrogate.increment_scale

    def with_gain(self: Surrogate, *args: Any, **options: Any) -> None:
        build(self, *args, **options)
        if STEP in self.problem.parameters:
            self.gain = nn.Parameter(torch.zeros(1, EMBEDDING_DIM))

    def scaled(self: Surrogate, batch: Batch) -> Tensor:
        if self.embedding is None or batch.parameters is None:
            return scale(self, batch)
        embedded = self.embedding(self.normalizer.normalize_parameters(batch.parameters))
        return scale(self, batch) * (1 + nn.functional.linear(embedded, self.gain)).reshape(-1, 1, 1, 1)

    with mock.patch.object(Surrogate, "__init__", with_gain), mock.patch.object(Surrogate, "increment_scale", scaled):
        yield


def errors(name: str, pde: str, seed: int, updates: int) -> dict[str, float]:
    if name.endswith("specialist"):
        with mock.patch.dict(time_steps.SIZES, WIDE if name.startswith("wide") else {}):
            alone = time_steps.trained(pde, LONGEST, seed, updates)
        return {str(LONGEST): time_steps.error(alone, pde, LONGEST)}
    change: Any = contextlib.nullcontext()
    if name == "proportional":
        change = mock.patch.object(trainer, "Windows", Proportional)
    elif name == "measured":
        change = time_steps.scaled(measured_power(pde))
    elif name == "gain":
        change = learned_gain()
    elif name == "wide":
        change = mock.patch.dict(time_steps.SIZES, WIDE)
    with change:
        surrogate = time_steps.trained(pde, list(time_steps.STRIDES), seed, updates)
        return {str(s): time_steps.error(surrogate, pde, s) for s in (*time_steps.STRIDES, 2.5)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problem", default="burgers", choices=list(time_steps.CASES))
    parser.add_argument("--updates", type=int, default=1500)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    began, rows = time.perf_counter(), []
    for seed in options.seeds:
        for name in options.variants:
            found = errors(name, options.problem, seed, options.updates)
            rows.append({"variant": name, "seed": seed, "errors": found})
            print(rows[-1], flush=True)
    result = {
        "benchmark": __doc__.split("\n")[0],
        "problem": options.problem,
        "updates": options.updates,
        "variants": VARIANTS,
        "rows": rows,
        **provenance(seed=options.seeds[0], seconds=time.perf_counter() - began, device=torch.device("cpu")),
    }
    write_json(options.out, result)


if __name__ == "__main__":
    main()
