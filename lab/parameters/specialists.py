"""A surrogate of Kolmogorov flow over Reynolds numbers and specialists for one of them, on a coarser grid.

    python -m lab.parameters.specialists --data data --reynolds 300 --points 32 --updates 1000 \\
        --out results/cpu/reynolds_specialists.json

The data are those of `lab.parameters.reynolds`, cut to the modes that ``points`` per axis resolve. Both are trained by
`factformer.fit` with as many trajectories and updates, and scored on the same new flows at that Reynolds number.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import factformer
from factformer.data.dataset import ArrayDataset
from factformer.data.normalization import Normalizer
from factformer.data.store import open_dataset
from factformer.evaluation.provenance import provenance, write_json
from factformer.pdes.kolmogorov_flow import pde
from factformer.surrogate import Surrogate
from lab.parameters.reynolds import errors

NAMES = ("reynolds", "forcing_wavenumber")
SETTINGS = {
    "model.dim": 48,
    "model.depth": 3,
    "model.heads": 4,
    "model.head_dim": 16,
    "model.kernel_dim": 32,
    "model.local_kernel": 7,
    "model.patch": 2,
    "protocol.stride": 2,
    "protocol.pushforward": 2,
}


def coarse(folder: Path, split: str, points: int, normalizer: Normalizer | None = None) -> ArrayDataset:
    """A split with two frames of context, cut to ``points`` per axis."""
    stored = open_dataset(folder, split, parameters=NAMES, num_context_frames=2, horizon=16)
    frames = stored.read(slice(None))
    cut = pde.downsample(frames.flatten(0, 1).unsqueeze(1), (points, points)).reshape(
        *frames.shape[:2], points, points, 1
    )
    problem = replace(stored.problem, grid=pde.grid((points, points)))
    parameters = stored.read(slice(None), part="parameters")
    return ArrayDataset(cut, problem, split, parameters=parameters, normalizer=normalizer)


def trained(data: ArrayDataset, updates: int, seed: int) -> Surrogate:
    settings = {**SETTINGS, "training.seed": seed}
    return factformer.fit(data, updates=updates, settings=settings, progress=False).eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--reynolds", type=float, nargs="+", required=True)
    parser.add_argument("--points", type=int, default=32)
    parser.add_argument("--updates", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    began, used = time.perf_counter(), time.process_time()
    everything = coarse(options.data / "range", "train", options.points)
    surrogate = trained(everything, options.updates, options.seed)
    rows: list[dict[str, Any]] = []
    for number in options.reynolds:
        folder = options.data / f"{number:g}"
        alone = coarse(folder, "train", options.points)
        specialist = trained(alone, options.updates, options.seed)
        ours, each = errors(surrogate, coarse(folder, "test", options.points, everything.normalizer()))
        theirs, their_each = errors(specialist, coarse(folder, "test", options.points, alone.normalizer()))
        ratio = ours["relative_l2"] / theirs["relative_l2"]
        spread = float((each - ratio * their_each).std(ddof=1) / np.sqrt(len(each)) / theirs["relative_l2"])
        rows.append(
            {"reynolds": number, "surrogate": ours, "specialist": theirs, "ratio": ratio, "ratio_error": spread}
        )
        print(rows[-1], flush=True)
    found = {
        "benchmark": __doc__.split("\n")[0],
        "points": options.points,
        "trajectories": everything.num_trajectories,
        "updates": options.updates,
        "rows": rows,
        "processor_seconds": time.process_time() - used,
        **provenance(seed=options.seed, seconds=time.perf_counter() - began, device=torch.device("cpu")),
    }
    write_json(options.out, found)


if __name__ == "__main__":
    main()
