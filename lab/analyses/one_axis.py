"""Why `factformer_plus` was behind in one dimension: `fit` with one change at a time on Kuramoto-Sivashinsky.

    python -m lab.analyses.one_axis --out results/cpu/one_axis.json

50 trajectories of 51 frames on a box of length 60, solved by us. Every variant trains for as many updates as the
others, and for as much processor time: the cost of an update is measured first, and the number of updates follows.
The table gives the relative L2 error of roll-outs over 16 frames from the four first frames of unseen trajectories.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import factformer
from factformer import Grid
from factformer.evaluation.provenance import provenance, write_json
from factformer.pdes import find_pde
from factformer.surrogate import Surrogate

POINTS, EXTENT, DT, WARMUP, FRAMES, HORIZON, CONTEXT = 160, 60.0, 0.5, 60.0, 51, 16, 4
TRAIN, TEST = 50, 30

WIDE: dict[str, Any] = {
    "model.dim": 128,
    "model.heads": 8,
    "model.head_dim": 64,
    "model.kernel_dim": 128,
    "model.local_kernel": 5,
    "model.fourier": "periodic",
}
"""The sizes that `fit` took before; every variant of ours starts from them, whatever the defaults are now."""
SMALL = {"model.heads": 4, "model.head_dim": 32, "model.kernel_dim": 32}
LOCAL = {**SMALL, "model.local_kernel": 9}
ADAMW = {"training.optimizer": "adamw", "training.learning_rate": 3e-3}
VARIANTS: dict[str, dict[str, Any]] = {
    "ffno": {"model": "ffno"},
    "dilated_resnet": {"model": "dilated_resnet"},
    "before": {"model.patch": 1},
    "kernel 3": {"model.local_kernel": 3},
    "kernel 7": {"model.local_kernel": 7},
    "kernel 9": {"model.local_kernel": 9},
    "kernel 15": {"model.local_kernel": 15},
    "kernel 31": {"model.local_kernel": 31},
    "dilated 1, 2, 4, 8": {"model.local_dilations": [1, 2, 4, 8]},
    "depth 2": {"model.depth": 2},
    "depth 6": {"model.depth": 6},
    "depth 8": {"model.depth": 8},
    "no Fourier features": {"model.fourier": "off"},
    "Fourier features of std 1 / extent": {"model.fourier_std": 8 / EXTENT},
    "no rotation": {"model.rotary": "off"},
    "rotary scale 6.7": {"model.rotary_scale": 6.7},
    "no noise": {"training.noise": 0.0},
    "noise 0.3 %": {"training.noise": 0.003},
    "no pushforward": {"protocol.pushforward": 0},
    "learning rate 3e-3": {"training.learning_rate": 3e-3},
    "learning rate 1e-2": {"training.learning_rate": 1e-2},
    "batch 8": {"training.batch_size": 8},
    "batch 16": {"training.batch_size": 16},
    "two frames per call": {"protocol.marching_steps": 2},
    "four frames per call": {"protocol.marching_steps": 4, "protocol.pushforward": 1},
    "patch 2": {"model.patch": 2},
    "one frame of context": {"context": 1},
    "4 heads of 32": {**SMALL},
    "4 heads of 32, no Fourier features": {**SMALL, "model.fourier": "off"},
    "small": {**LOCAL, "model.fourier": "off"},
    "small, 8 waves per box": {**LOCAL, "model.fourier_std": 8 / EXTENT},
    "small, 2 waves per box": {**LOCAL, "model.fourier_std": 2 / EXTENT},
    "small, kernel 15": {**LOCAL, "model.fourier": "off", "model.local_kernel": 15},
    "small, 64 channels": {**LOCAL, "model.fourier": "off", "model.dim": 64},
    "small, depth 6": {**LOCAL, "model.fourier": "off", "model.depth": 6},
    "small, AdamW 3e-3": {**LOCAL, "model.fourier": "off", **ADAMW},
    "small, batch 8": {**LOCAL, "model.fourier": "off", "training.batch_size": 8},
    "small, no pushforward": {**LOCAL, "model.fourier": "off", "protocol.pushforward": 0},
    "small, no rotation": {**LOCAL, "model.fourier": "off", "model.rotary": "off"},
    "small, four frames per call": {
        **LOCAL,
        "model.fourier": "off",
        "protocol.marching_steps": 4,
        "protocol.pushforward": 1,
    },
    "small, one frame of context": {**LOCAL, "model.fourier": "off", "context": 1},
    "AdamW 1e-3": {"training.optimizer": "adamw", "training.learning_rate": 1e-3},
}
"""Settings by name; ``model`` and ``context`` are arguments of `fit`."""


def trajectories(count: int, seed: int, num_frames: int) -> Tensor:
    """Developed states ``(trajectory, frame, x, 1)``, solved in float64."""
    pde = find_pde("kuramoto_sivashinsky")
    grid = Grid(POINTS, EXTENT, periodic=True)
    generators = [torch.Generator().manual_seed(1000 * seed + index) for index in range(count)]
    start = pde.sample_initial(grid, generators, dtype=torch.float64, device="cpu")
    developed = factformer.simulate(pde, start, 2, WARMUP, extent=EXTENT)[:, -1]
    return factformer.simulate(pde, developed, num_frames, DT, extent=EXTENT).float()


def trained(frames: Tensor, variant: str, updates: int, seed: int) -> tuple[Surrogate, float]:
    """A surrogate, and the processor seconds that its training took."""
    settings = dict(VARIANTS[variant])
    if "model" not in settings:
        settings = {**WIDE, **settings}
    model, context = settings.pop("model", "factformer_plus"), settings.pop("context", CONTEXT)
    began = time.process_time()
    surrogate = factformer.fit(
        frames,
        grid=Grid(POINTS, EXTENT, periodic=True),
        frame_dt=DT,
        fields=["height"],
        num_context_frames=context,
        model=model,
        updates=updates,
        progress=False,
        settings={"training.seed": seed, **settings},
    )
    return surrogate.eval(), time.process_time() - began


def cost(frames: Tensor, variant: str) -> float:
    """Processor seconds of one update, on average over a whole training: later ones push forward and march further."""
    few, many = (trained(frames, variant, count, 0)[1] for count in (1, 61))
    return (many - few) / 60


def errors(surrogate: Surrogate, truth: Tensor) -> dict[str, float]:
    """Mean relative L2 error of single trajectories: all predicted frames together, and the first and last."""
    context = truth[:, CONTEXT - surrogate.problem.num_context_frames : CONTEXT]
    with torch.no_grad():
        found = torch.stack(list(factformer.rollout(surrogate, context, HORIZON)), dim=1)
    wanted = truth[:, CONTEXT : CONTEXT + HORIZON]

    def relative(part: slice) -> float:
        difference = (found[:, part] - wanted[:, part]).flatten(1).norm(dim=1)
        return float((difference / wanted[:, part].flatten(1).norm(dim=1)).mean())

    return {"average": relative(slice(None)), "first": relative(slice(0, 1)), "last": relative(slice(-1, None))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--updates", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=60.0, help="processor time of each run at equal cost")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--equal", nargs="+", default=["updates", "seconds"], choices=["updates", "seconds"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    began = time.perf_counter()
    frames, truth = trajectories(TRAIN, 1, FRAMES), trajectories(TEST, 2, CONTEXT + HORIZON)
    rows: list[dict[str, Any]] = []
    for variant in options.variants:
        each = cost(frames, variant)
        for equal in options.equal:
            updates = options.updates if equal == "updates" else max(20, round(options.seconds / each))
            for seed in range(options.seeds):
                surrogate, seconds = trained(frames, variant, updates, seed)
                rows.append(
                    {
                        "variant": variant,
                        "settings": VARIANTS[variant],
                        "equal": equal,
                        "seed": seed,
                        "updates": updates,
                        "seconds": round(seconds, 2),
                        "relative_l2": errors(surrogate, truth),
                    }
                )
                print(rows[-1], flush=True)
    result = {
        "benchmark": __doc__.split("\n")[0],
        "data": {"points": POINTS, "extent": EXTENT, "frame_dt": DT, "train": TRAIN, "frames": FRAMES, "test": TEST},
        "horizon": HORIZON,
        "rows": rows,
        **provenance(seed=0, seconds=time.perf_counter() - began, device=torch.device("cpu")),
    }
    write_json(options.out, result)


if __name__ == "__main__":
    main()
