"""Latent marching and decoder alone on a GPU: time by kernel, errors against float64, and tiles tried out.

python -m lab.kernel_timings.march_decode --check          errors of the fused bfloat16 path against float64
python -m lab.kernel_timings.march_decode --time 256 128   time of each kernel, forward and backward
python -m lab.kernel_timings.march_decode --tiles 256      the same with other tiles, one after the other
"""

from __future__ import annotations

import argparse
import concurrent.futures
import importlib
import math
import multiprocessing
import os
from typing import Any

import torch

from factformer import Field, Grid, Problem, build_surrogate
from factformer.kernels._triton.tiles import Tile

CASES: dict[str, tuple[tuple[int, ...], int, int, int]] = {
    "256": ((256, 256), 10, 4, 1),
    "128": ((128, 128), 4, 4, 1),
    "box": ((64, 64, 64), 4, 2, 1),
    "box4": ((64, 64, 64), 4, 2, 4),
    "odd": ((37, 41), 3, 3, 2),
    "odd box": ((13, 9, 11), 2, 2, 1),
    "bounded": ((33, 20), 1, 1, 1),
}
VARIANTS: dict[str, dict[str, list[Any]]] = {
    "decoder_forward": {"TILE": [Tile(128, 4, 2), Tile(128, 4, 3), Tile(64, 4, 2)]},
    "decoder_backward": {
        "TILE": [Tile(128, 4, 2), Tile(128, 4, 3), Tile(64, 4, 3)],
        "WEIGHTS_TILE": [Tile(64, 8, 3), Tile(64, 8, 4), Tile(128, 8, 2)],
    },
    "marching_forward": {"TILE": [Tile(128, 4, 3), Tile(128, 4, 4), Tile(128, 4, 2), Tile(64, 4, 2)]},
    "marching_backward": {
        "HIDDEN_TILE": [Tile(64, 8, 2), Tile(64, 4, 2), Tile(128, 8, 3), Tile(128, 8, 4)],
        "STATE_TILE": [Tile(64, 4, 2), Tile(128, 4, 3), Tile(128, 8, 3)],
    },
    "marching_weights_backward": {"TILE": [Tile(64, 4, 3), Tile(64, 4, 4), Tile(128, 4, 2), Tile(128, 8, 3)]},
}
"""By module and name of the constant; the first value is what is used."""
KERNELS = {
    ("decoder_forward", "TILE"): "_decode_kernel",
    ("decoder_backward", "TILE"): "_decode_gradient_kernel",
    ("decoder_backward", "WEIGHTS_TILE"): "_decoder_weights_kernel",
    ("marching_forward", "TILE"): "_march_kernel",
    ("marching_backward", "HIDDEN_TILE"): "_hidden_gradient_kernel",
    ("marching_backward", "STATE_TILE"): "_state_gradient_kernel",
    ("marching_weights_backward", "TILE"): "_march_weights_kernel",
}
DEVICE = "cuda"


def problem(name: str) -> tuple[Any, Grid, torch.Tensor, int]:
    shape, batch, steps, channels = CASES[name]
    torch.manual_seed(0)
    grid = Grid(shape, 2 * math.pi, name != "bounded")
    boundary: Any = "zero" if name == "bounded" else "periodic"
    task = Problem("benchmark", grid, (Field("field", channels),), num_context_frames=2, boundary=boundary)
    surrogate = build_surrogate(task, marching_steps=steps, depth=1).to(DEVICE)
    generator = torch.Generator(DEVICE).manual_seed(1)
    with torch.no_grad():
        for parameter in surrogate.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, device=DEVICE, generator=generator))
    z = torch.randn(batch, *shape, surrogate.marching.expand.in_features, device=DEVICE, generator=generator)
    return surrogate, grid, z, steps


def run(
    surrogate: Any, grid: Grid, z: torch.Tensor, steps: int, mode: str, dtype: torch.dtype
) -> list[tuple[str, torch.Tensor]]:
    """Fields and gradients, by name."""
    os.environ["FACTFORMER_FUSED"] = mode
    working = torch.float64 if dtype == torch.float64 else torch.float32
    surrogate = surrogate.to(working)
    z = z.to(working).detach().requires_grad_()
    names = [n for n, _ in surrogate.named_parameters() if n.startswith(("marching", "decoder"))]
    parameters = [dict(surrogate.named_parameters())[n] for n in names]
    with torch.autocast("cuda", torch.bfloat16, enabled=dtype == torch.bfloat16):
        fields = surrogate.decode(z, steps, grid)
    probe = torch.randn(fields.shape, device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(2))
    grads = torch.autograd.grad((fields.to(working) * probe.to(working)).sum(), [z, *parameters])
    os.environ["FACTFORMER_FUSED"] = "auto"
    return [("fields", fields.detach().double())] + [
        (name, g.double()) for name, g in zip(["field", *names], grads, strict=True)
    ]


def check(name: str) -> None:
    case = problem(name)
    exact = run(*case, "off", torch.float64)
    for label, mode in (("fused", "auto"), ("plain", "off")):
        got = run(*case, mode, torch.bfloat16)
        errors = {n: float((a - b).norm() / b.norm()) for (n, a), (_, b) in zip(got, exact, strict=True)}
        whole = math.sqrt(sum(float((a - b).norm()) ** 2 for (_, a), (_, b) in zip(got[1:], exact[1:], strict=True)))
        whole /= math.sqrt(sum(float(b.norm()) ** 2 for _, b in exact[1:]))
        print(f"{name} {label}: gradients {whole:.2e}", " ".join(f"{n} {e:.1e}" for n, e in errors.items()), flush=True)


def step(case: tuple[Any, Grid, torch.Tensor, int], *, training: bool = True) -> None:
    surrogate, grid, z, steps = case
    with torch.autocast("cuda", torch.bfloat16), torch.set_grad_enabled(training):
        fields = surrogate.decode(z, steps, grid)
    if training:
        fields.backward(torch.ones_like(fields))


def profile(name: str, rows: int = 25, only: str = "") -> None:
    case = problem(name)
    case[0].zero_grad()
    for _ in range(2):
        step(case)
    torch.cuda.synchronize()
    repeats = 3
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as result:
        for _ in range(repeats):
            step(case)
        torch.cuda.synchronize()
    events = [e for e in result.key_averages() if e.self_device_time_total > 0]
    events.sort(key=lambda e: -e.self_device_time_total)
    total = sum(e.self_device_time_total for e in events) / 1e3 / repeats
    if not only:
        launches = sum(e.count for e in events) // repeats
        print(f"{name}: {total:.3f} ms in {launches} launches", flush=True)
    for event in events[:rows]:
        if only in event.key:
            spent = event.self_device_time_total / 1e3 / repeats
            print(f"  {spent:8.4f} ms {event.count // repeats:4d} x {event.key[:80]}", flush=True)


def choose(module: str, name: str, value: Any) -> None:
    setattr(importlib.import_module(f"factformer.kernels.march_decode.{module}"), name, value)


def warm(job: tuple[str, str, Any, str]) -> str:
    """Compiles what one variant needs, in a process of its own."""
    module, constant, value, name = job
    try:
        if module:
            choose(module, constant, value)
        step(problem(name))
        torch.cuda.synchronize()
    except Exception as error:
        return f"{job}: {type(error).__name__} {str(error)[:300]}"
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", nargs="*", default=None, choices=list(CASES), help="errors against float64")
    parser.add_argument("--time", nargs="*", default=[], choices=list(CASES))
    parser.add_argument("--tiles", nargs="*", default=[], choices=list(CASES))
    arguments = parser.parse_args()
    if arguments.tiles:
        jobs: list[tuple[str, str, Any, str]] = [("", "", None, "odd"), ("", "", None, "odd box")]
        for module, constants in VARIANTS.items():
            jobs += [(module, name, value, "odd") for name, values in constants.items() for value in values[1:]]
        context = multiprocessing.get_context("spawn")
        with concurrent.futures.ProcessPoolExecutor(14, mp_context=context) as pool:
            for message in pool.map(warm, jobs):
                if message:
                    print(message, flush=True)
    if arguments.check is not None:
        for name in arguments.check or ("odd", "odd box", "bounded", "128"):
            check(name)
    for name in arguments.time:
        profile(name)
        torch.cuda.empty_cache()
    for name in arguments.tiles:
        for module, constants in VARIANTS.items():
            for constant, values in constants.items():
                for value in values:
                    choose(module, constant, value)
                    print(name, module, value, flush=True)
                    try:
                        profile(name, only=KERNELS[module, constant])
                    except Exception as error:
                        print(type(error).__name__, str(error)[:300], flush=True)
                choose(module, constant, values[0])
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
