"""How far presets are from what their equations say: the same starts solved on more points, in float64.

    python -m lab.equations.preset_resolution small --out results/cpu/preset_resolution_small.json
    python -m lab.equations.preset_resolution paper --out results/cpu/preset_resolution_paper.json

Relative L2 difference at the points that are stored, at a quarter, half and the end of trajectories of the preset,
whose parameters and steps are kept but for those that are named: the mean of several starts, and the largest.
"""

from __future__ import annotations

import argparse
import math
import time
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from factformer.evaluation.provenance import provenance, write_json
from factformer.pdes import Settings, find_pde, solve

CASES: dict[str, list[tuple[str, dict[str, Any], tuple[int, ...], int]]] = {
    "small": [
        ("gray_scott", {}, (64, 128, 160, 192), 384),
        ("cahn_hilliard", {}, (64, 96, 128), 256),
        ("swift_hohenberg", {}, (64,), 128),
        ("swift_hohenberg", {"extent": 20 * math.pi}, (64, 96, 128), 256),
    ],
    "paper": [
        ("cahn_hilliard", {}, (256, 320), 512),
        ("swift_hohenberg", {}, (128,), 256),
    ],
}
"""Of each preset: equation, changed parameters, points along an axis, and points of what they are held against."""
STARTS = 4


def frames_at(name: str, preset: str, changes: dict[str, Any], points: int) -> list[Tensor]:
    """Three frames of some random starts, solved on so many points."""
    pde = find_pde(name)
    plan = pde.presets[preset]
    settings = Settings.parse(pde, {**plan.parameters, **changes}).shared
    grid = pde.grid_of(pde.shape_in(plan, points), settings)
    generators = [torch.Generator().manual_seed(seed) for seed in range(STARTS)]
    start = pde.sample_initial(grid, generators, dtype=torch.float64, device="cpu")
    last = round(plan.warmup / plan.frame_dt) + plan.num_frames - 1
    wanted = [round(last * share) for share in (0.25, 0.5, 1.0)]
    solved = solve(pde, start, last + 1, plan.frame_dt, settings)
    return [frame for number, frame in enumerate(islice(solved, last + 1)) if number in wanted]


def stored(name: str, preset: str, frame: Tensor) -> Tensor:
    """A frame as it is stored."""
    pde = find_pde(name)
    shape = pde.shape_in(pde.presets[preset])
    return frame if frame.shape[1:-1] == torch.Size(shape) else pde.downsample(frame[:, None], shape)[:, 0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("preset", choices=list(CASES))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    began, rows = time.perf_counter(), []
    for name, changes, sizes, finest in CASES[options.preset]:
        exact = frames_at(name, options.preset, changes, finest)
        for points in sizes:
            errors = []
            for found, truth in zip(frames_at(name, options.preset, changes, points), exact, strict=True):
                found, wanted = (stored(name, options.preset, frame) for frame in (found, truth))
                size, wrong = (values.flatten(1).norm(dim=1) for values in (wanted, found - wanted))
                errors.append(wrong / size)
            row = {"equation": name, "changes": changes, "points": points, "against": finest}
            row |= {"mean": [float(e.mean()) for e in errors], "largest": [float(e.max()) for e in errors]}
            rows.append(row)
            print(rows[-1], flush=True)
        result = {
            "starts": STARTS,
            "benchmark": __doc__.split("\n")[0],
            "preset": options.preset,
            "at": ["a quarter", "half", "the end"],
            "rows": rows,
            **provenance(seed=0, seconds=time.perf_counter() - began, device=torch.device("cpu")),
        }
        write_json(options.out, result)


if __name__ == "__main__":
    main()
