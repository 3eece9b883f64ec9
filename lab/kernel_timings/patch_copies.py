"""Patches on a GPU: copied before and after the kernels, or addressed by them where they lie; times and differences.

    python -m lab.kernel_timings.patch_copies --out results/speed/patches_h200.json

Milliseconds in bfloat16 of the encoder, of marching with the decoder, and of a whole call, forward and with the
backward pass: by the wall for calls that follow each other, and of the kernels alone. The two ways are timed in turn,
several times over; the least time counts. ``copies_gb`` is what the copies move, read and written. Whether
`factformer.kernels._triton.in_place.IN_PLACE` should be true is read off the rows ``whole call``.
"""

from __future__ import annotations

import argparse
import functools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from factformer import Field, Grid, Problem, build_surrogate, engine
from factformer.evaluation.provenance import provenance, write_json
from factformer.kernels._triton import in_place
from factformer.surrogate import Surrogate
from lab.kernel_timings.timed_calls import wall

STEPS = 2
WAYS = {"copies": False, "in place": True}


@dataclass(frozen=True)
class Case:
    shape: tuple[int, ...]
    batch: int
    patch: int
    channels: int = 1
    frames: int = 2
    dim: int = 128

    @property
    def copied_bytes(self) -> int:
        """Of float32 frames in and predicted ones out, each read and written."""
        return 2 * 4 * self.batch * math.prod(self.shape) * self.channels * (self.frames + STEPS)


CASES = {
    "128², patch 2": Case((128, 128), 10, 2),
    "128², patch 2, ten frames": Case((128, 128), 10, 2, frames=10),
    "256², patch 2": Case((256, 256), 10, 2),
    "256², patch 4": Case((256, 256), 10, 4),
    "64³, four channels, patch 2": Case((64, 64, 64), 4, 2, channels=4),
}


def surrogate_of(case: Case, device: str) -> tuple[Surrogate, Tensor]:
    torch.manual_seed(0)
    grid = Grid(case.shape, 2 * math.pi, True)
    problem = Problem("patches", grid, (Field("a", case.channels),), num_context_frames=case.frames)
    sizes = {} if case.dim >= 64 else {"heads": 2, "head_dim": 8, "kernel_dim": 8}
    surrogate = build_surrogate(problem, marching_steps=STEPS, patch=case.patch, dim=case.dim, **sizes).to(device)
    frames = torch.randn(case.batch, case.frames, *case.shape, case.channels, device=device)
    return surrogate, frames


def calls(surrogate: Surrogate, frames: Tensor) -> dict[str, Callable[[], Tensor]]:
    """What is timed, by name."""
    grid, statistics = surrogate.problem.grid, surrogate.encoder_statistics()
    inner = surrogate.latent_grid(grid)
    z = torch.randn(len(frames), *inner.shape, surrogate.marching.expand.in_features, device=frames.device)
    return {
        "encoder": lambda: surrogate.encoder(frames, statistics, surrogate.patches, grid),
        "marching and decoder": lambda: surrogate.decode(z, STEPS, inner, fine=grid),
        "whole call": lambda: surrogate(frames, STEPS),
    }


def gradients(surrogate: Surrogate, result: Tensor) -> list[Tensor]:
    found = torch.autograd.grad(result.float().square().sum(), list(surrogate.parameters()), allow_unused=True)
    return [gradient for gradient in found if gradient is not None]


def difference(found: dict[str, list[Tensor]]) -> float:
    """The largest relative difference of what the two ways gave."""
    pairs = zip(*found.values(), strict=True)
    return max(float((a - b).float().norm() / a.float().norm().clamp_min(1e-30)) for a, b in pairs)


def on_device(call: Callable[[], Any], repeats: int) -> float:
    """Time of the kernels alone."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as result:
        for _ in range(repeats):
            call()
        torch.cuda.synchronize()
    return sum(event.self_device_time_total for event in result.key_averages()) / 1e3 / repeats


def measure(case: Case, repeats: int, rounds: int) -> list[dict[str, Any]]:
    ways: dict[str, dict[str, Callable[[], Tensor]]] = {}
    surrogates = {}
    for way in WAYS:  # one each: a recorded call keeps its way
        surrogate, frames = surrogate_of(case, "cuda")
        engine.attach(surrogate)
        surrogates[way], ways[way] = surrogate, calls(surrogate, frames)
    rows = []
    for name in ways["copies"]:
        given: dict[str, list[Tensor]] = {}
        for way, in_place.IN_PLACE in WAYS.items():
            with torch.autocast("cuda", torch.bfloat16):
                result = ways[way][name]()
            given[way] = [result.detach(), *gradients(surrogates[way], result)]

        def forward(way: str, name: str = name) -> None:
            with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
                ways[way][name]()

        def both(way: str, name: str = name) -> None:
            with torch.autocast("cuda", torch.bfloat16):
                result = ways[way][name]()
            gradients(surrogates[way], result)

        for label, timed in (("forward", forward), ("forward and backward", both)):
            found: dict[str, dict[str, float]] = {}
            for clock in (wall, on_device):
                least = dict.fromkeys(WAYS, math.inf)
                for _ in range(rounds):
                    for way, in_place.IN_PLACE in WAYS.items():
                        call = functools.partial(timed, way)
                        call()
                        least[way] = min(least[way], clock(call, repeats))
                found[clock.__name__] = least
            rows.append({"stage": name, "pass": label, "milliseconds": found, "difference": difference(given)})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    began, found = time.perf_counter(), {}
    for name in options.cases:
        case = CASES[name]
        found[name] = {"copies_gb": case.copied_bytes / 1e9, "rows": measure(case, options.repeats, options.rounds)}
        print(name, found[name], flush=True)
    if options.out:
        made = provenance(seed=0, seconds=time.perf_counter() - began, device="cuda")
        write_json(options.out, {"analysis": "patches in place", "cases": found, **made})


if __name__ == "__main__":
    main()
