"""A surrogate of `obstacle_flow` on bodies that it has not seen, and the Strouhal number of a cylinder in it.

    factformer generate obstacle_flow --preset small --out data/o --set num_frames=40 --split train --trajectories 320
    factformer generate obstacle_flow --preset small --out data/o --set num_frames=40 --split valid --trajectories 12
    factformer generate obstacle_flow --preset small --out data/l --set num_frames=72 --split train --trajectories 48
    factformer generate obstacle_flow --preset small --out data/l --set num_frames=72 --split test --trajectories 48
    factformer train obstacle --data data/o --out runs/obstacle --budget-minutes 25 \\
        --set model.patch=2 --set model.depth=3 --set protocol.stride=2 --set data.num_context_frames=2 \\
        --set training.validate_every=500 --set training.checkpoint_every=1000
    python -m lab.analyses.unseen_bodies runs/obstacle data/l

The run is stored as the bundle `obstacle-small` of the zoo, in float16. The numbers are of that bundle; they go to
results/cpu/obstacle_surrogate.json and to its card.

Seen bodies are those of the first 48 training flows, unseen ones those of 48 test flows. Both are scored from frame 40
on, where training data end, so that neither's frames were trained on and both are equally far from the start. The
Strouhal number is that of the speed across the stream behind a single cylinder, in the solver and in the surrogate.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import factformer
from factformer.batch import Batch
from factformer.bundle import save_bundle
from factformer.data.dataset import Dataset
from factformer.data.store import open_dataset
from factformer.evaluation.provenance import provenance, write_json
from factformer.pdes._common.bodies import body
from factformer.pdes.obstacle_flow import Parameters, pde
from factformer.surrogate import Surrogate
from factformer.zoo.index import CARD as CARD_FILE
from factformer.zoo.index import DESCRIPTION, WEIGHTS
from lab import ROOT
from lab.analyses.cylinder import CENTRE, strouhal
from lab.analyses.small_bundle import on_card

STARTS = (40, 46, 52)
"""Frames at which roll-outs begin; the first is where the frames of training end."""
CYLINDERS = ({"diameter": 0.4, "reynolds": 80}, {"diameter": 0.5, "reynolds": 100}, {"diameter": 0.6, "reynolds": 120})
WARMUP, DURATION = 40.0, 80.0
NAME, RESULT = "obstacle-small", "results/cpu/obstacle_surrogate.json"
TRAIN = (
    "factformer train obstacle --data data/o --out runs/obstacle --budget-minutes 25 --set model.patch=2 "
    "--set model.depth=3 --set protocol.stride=2 --set data.num_context_frames=2 --set training.validate_every=500 "
    "--set training.checkpoint_every=1000"
)
CARD = """# {name}

`{model}` for `{problem}` on {shape} points, {parameters:,} parameters. For CPUs.

    surrogate = factformer.load("{name}")

| | |
|---|---|
| task | {context} frames at intervals of {frame_dt:g}, the mask and the viscosity in, one frame per call out, velocity in physical units |
| size | {megabytes:.2f} MB, stored in float16 |
| data | 320 training flows of 40 frames, 0.25 apart: `factformer generate obstacle_flow --preset small --set num_frames=40 --split train --trajectories 320` |
| training | {minutes:.0f} minutes on {hardware}; {updates:,} updates; seed {seed} |
| recipe | `{train}` |
| error, new bodies | relative L2 {unseen[relative_l2]:.4f} ± {unseen[standard_error]:.4f} over {unseen[frames]} frames of {unseen[flows]} flows; last frame repeated {unseen[persistence]:.3f} |
| error, bodies of the training data | {seen[relative_l2]:.4f} ± {seen[standard_error]:.4f}, at later times than trained on |
| Strouhal number of one cylinder | {ratios} times the solver's at Re {reynolds}; amplitudes {amplitudes} times |
| time | {milliseconds:.0f} ms a call on one thread |
| measured in | `{result}` |

Limits: a stream of speed 1 in a periodic box of 8 × 4, one to four bodies, viscosity {low:.3g} to {high:.3g}. Coarse data
(64 points across the box, penalisation 0.005): Strouhal numbers are held against the solver on this grid, not against
experiments. One training run; ± is the standard error over flows.
"""  # noqa: E501


def later_errors(surrogate: Surrogate, dataset: Dataset, starts: Sequence[int] = STARTS) -> dict[str, Any]:
    """Relative L2 errors of roll-outs, mean over frames and windows of each flow, and those of persistence."""
    problem, device = surrogate.problem, next(surrogate.parameters()).device
    stride, context = round(problem.frame_dt / dataset.problem.frame_dt), problem.num_context_frames
    flows: list[Tensor] = []
    still: list[Tensor] = []
    for start in starts:
        window = dataset.window(slice(None), slice(start, start + (context + problem.horizon - 1) * stride + 1, stride))
        frames, known = window.to(device)
        with torch.no_grad():
            batch = known._replace(context=frames[:, :context])
            found = torch.stack(list(factformer.rollout(surrogate, batch, problem.horizon)), dim=1)
        assert known.mask is not None
        inside, truth = known.mask[:, None, ..., None], frames[:, context:]
        flows.append(_relative(found, truth, inside))
        still.append(_relative(frames[:, context - 1 : context].expand_as(truth), truth, inside))
    errors = torch.stack(flows).mean(0)  # windows of one flow are not independent
    return {
        "flows": len(errors),
        "frames": problem.horizon,
        "relative_l2": float(errors.mean()),
        "standard_error": float(errors.std() / len(errors) ** 0.5),
        "median": float(errors.median()),
        "persistence": float(torch.stack(still).mean()),
    }


def _relative(found: Tensor, truth: Tensor, inside: Tensor) -> Tensor:
    """Mean over frames of the error of each sample, over the fluid alone."""
    axes = (2, 3, 4)
    difference = ((found - truth) * inside).square().sum(axes)
    return (difference / (truth * inside).square().sum(axes)).sqrt().mean(1)


def shedding(
    surrogate: Surrogate, diameter: float, reynolds: float, resolution: int, penalisation: float = 5e-3
) -> dict[str, Any]:
    """Strouhal numbers of solver and surrogate from the same developed flow, as far apart in time as its frames."""
    viscosity, step = diameter / reynolds, surrogate.problem.frame_dt
    grid = pde.grid(pde.shape(resolution))
    mask = ~body(grid, CENTRE, diameter / 2)[None]
    start = torch.zeros(1, *grid.shape, 2)
    start[..., 0] = 1
    x1, x2 = grid.mesh().unbind(-1)
    away = (x1 - CENTRE[0] - 1.5 * diameter) ** 2 + (x2 - CENTRE[1]) ** 2
    start[0, ..., 1] = (0.3 * torch.exp(-away / diameter**2)).float()  # a kick, so that shedding begins at once
    device = next(surrogate.parameters()).device
    start, mask = start.to(device), mask.to(device)
    count, context = round(DURATION / step), surrogate.problem.num_context_frames
    parameters = Parameters(viscosity=viscosity, penalisation=penalisation)
    frames = pde.frames(start, round(WARMUP / step) + context + count, step, parameters, Batch(mask=mask))
    truth = torch.stack(list(frames)[round(WARMUP / step) :], dim=1)
    probe = (0, slice(None), round((CENTRE[0] + 2 * diameter) / grid.spacing(0)), resolution // 2, 1)
    began = time.perf_counter()
    with torch.no_grad():
        batch = Batch(context=truth[:, :context], parameters=torch.tensor([[viscosity]], device=device), mask=mask)
        found = torch.stack(list(factformer.rollout(surrogate, batch, count)), dim=1)
    seconds = time.perf_counter() - began
    solver, ours = (strouhal(flow[probe].tolist(), step, diameter) for flow in (truth[:, context:], found))
    swings = [float(flow[probe].std() * 2**0.5) for flow in (truth[:, context:], found)]
    return {
        "diameter": diameter,
        "reynolds": reynolds,
        "viscosity": viscosity,
        "points_per_diameter": diameter / grid.spacing(0),
        "frames": count,
        "strouhal_solver": solver,
        "strouhal_surrogate": ours,
        "ratio": None if solver is None or ours is None else ours / solver,
        "amplitude_solver": swings[0],
        "amplitude_surrogate": swings[1],
        "seconds_surrogate": seconds,
    }


def stored(run: Path, folder: Path) -> Surrogate:
    """The surrogate of a run as the bundle in ``folder``, with the command of this page instead of one with paths."""
    trained = factformer.load(run / "bundle")
    save_bundle(trained, folder, {**trained.provenance, "command": TRAIN}, storage=torch.float16, overwrite=True)
    return factformer.load(folder).eval()


def card(surrogate: Surrogate, found: dict[str, Any], num_bytes: int) -> str:
    cylinders = found["cylinders"]
    low, high = surrogate.normalizer.parameters_min, surrogate.normalizer.parameters_max
    assert low is not None and high is not None
    seconds = min(row["seconds_surrogate"] / row["frames"] for row in cylinders)
    swings = [row["amplitude_surrogate"] / row["amplitude_solver"] for row in cylinders]
    return CARD.format(
        name=NAME,
        **on_card(surrogate, num_bytes),
        hardware=found["hardware"],
        seed=surrogate.provenance["seed"],
        train=TRAIN,
        seen=found["bodies"]["seen"],
        unseen=found["bodies"]["unseen"],
        ratios=", ".join("none" if row["ratio"] is None else f"{row['ratio']:.2f}" for row in cylinders),
        reynolds=", ".join(str(row["reynolds"]) for row in cylinders),
        amplitudes=", ".join(f"{swing:.2f}" for swing in swings),
        milliseconds=1e3 * seconds,
        result=RESULT,
        low=float(low[0]),
        high=float(high[0]),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("data", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    began = time.perf_counter()
    folder = ROOT / "zoo" / NAME
    surrogate = stored(options.run, folder)
    resolution = surrogate.problem.grid.shape[1]
    bodies = {
        name: later_errors(surrogate, open_dataset(options.data, split))
        for name, split in {"seen": "train", "unseen": "test"}.items()
    }
    print(bodies, flush=True)
    cylinders = [shedding(surrogate, **case, resolution=resolution) for case in CYLINDERS]
    for row in cylinders:
        print(row, flush=True)
    made = provenance(seed=0, seconds=time.perf_counter() - began, device=torch.device("cpu"))
    found = {
        "benchmark": __doc__.split("\n")[0],
        "bundle": f"{NAME}, stored in float16",
        "training": {"updates": surrogate.provenance["updates"], "seconds": surrogate.provenance["training_seconds"]},
        "bodies": bodies,
        "unseen_over_seen": bodies["unseen"]["relative_l2"] / bodies["seen"]["relative_l2"],
        "cylinders": cylinders,
        **made,
    }
    write_json(ROOT / RESULT, found)
    num_bytes = sum(file.stat().st_size for file in folder.iterdir() if file.name in (WEIGHTS, DESCRIPTION))
    (folder / CARD_FILE).write_text(card(surrogate, found, num_bytes), encoding="utf-8")


if __name__ == "__main__":
    main()
