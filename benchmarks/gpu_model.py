"""Speed of one model call and one training step on a GPU, against textbook formulations and the chip's floor.

    python benchmarks/gpu_model.py                      our numbers
    python benchmarks/gpu_model.py --check --profile    correctness first, then time by kernel
    python benchmarks/gpu_model.py --compare            with the textbook formulations, compiled ones included

All numbers of a table come from one run. ``--out FILE`` keeps them as JSON.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from factformer import Field, Grid, Problem, build_surrogate, metrics
from factformer.evaluation.provenance import provenance
from factformer.nn.axial_kernel import AxialKernel, axial_mean
from factformer.nn.fused.plan import floor_seconds
from factformer.nn.graphs import StepGraphs
from factformer.surrogate import Surrogate

DEVICE = "cuda"


@dataclass(frozen=True)
class Case:
    name: str
    grid: tuple[int, ...]
    batch: int
    steps: int
    overrides: dict[str, Any]
    channels: int = 1
    optimizer: bool = False

    def surrogate(self, dtype: torch.dtype = torch.float32, device: str = DEVICE) -> Surrogate:
        torch.manual_seed(0)
        problem = Problem(
            "benchmark", Grid(self.grid, 2 * math.pi, True), (Field("field", self.channels),), num_context_frames=10
        )
        surrogate = build_surrogate(problem, marching_steps=self.steps, **self.overrides)
        return surrogate.to(device=device, dtype=dtype)

    def frames(self, num: int) -> Tensor:
        generator = torch.Generator(DEVICE).manual_seed(1)
        return torch.randn(self.batch, num, *self.grid, self.channels, device=DEVICE, generator=generator)


PLANE = {"depth": 4, "heads": 8, "kernel_dim": 128}
BOX = {"depth": 4, "heads": 6, "kernel_dim": 192}
CASES = {
    "128": Case("128² × 4", (128, 128), 4, 4, PLANE),
    "256": Case("256² × 10", (256, 256), 10, 4, PLANE),
    "box": Case("64³ × 4", (64, 64, 64), 4, 2, BOX),
    "box4": Case("64³ × 4, 4 channels", (64, 64, 64), 4, 2, BOX, channels=4),
    "64": Case("64² × 32 + optimiser", (64, 64), 32, 4, PLANE, optimizer=True),
}


CHECKS = {
    "2-D 40×36": ((40, 36), 2, 3, PLANE),
    "3-D 20×17×24": ((20, 17, 24), 1, 2, BOX, 4),
    "1-D 300": ((300,), 3, 2, PLANE),
    "2-D 300×60 low rank": ((300, 60), 1, 2, {**PLANE, "kernel_dim": 64}),
}


def milliseconds(call: Callable[[], object], seconds: float = 1.0) -> float:
    """Median time of a call by device events."""
    times = []
    began = time.perf_counter()
    while len(times) < 5 or (time.perf_counter() - began < seconds and len(times) < 200):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def loss_of(surrogate: Surrogate, case: Case) -> Callable[..., tuple[Tensor, dict[str, Tensor]]]:
    grid = surrogate.problem.grid

    def compute(context: Tensor, target: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            prediction = surrogate.predict(context, case.steps, grid)
        return metrics.loss(prediction, target, surrogate.problem.output_slices), {}

    return compute


def measure_ours(case: Case) -> dict[str, Any]:
    """Inference, training step, peak memory and time to the first step with everything switched on."""
    row: dict[str, Any] = {}
    surrogate, context, target = case.surrogate(), case.frames(10), case.frames(case.steps)
    points = case.batch * math.prod(case.grid)

    def infer() -> Tensor:
        with torch.inference_mode(), torch.autocast("cuda", torch.bfloat16):
            grid = surrogate.problem.grid
            return surrogate.graphs(surrogate, "x", lambda x: surrogate.predict(x, case.steps, grid), context)

    began = time.perf_counter()
    infer()
    torch.cuda.synchronize()
    row["first_call_s"] = time.perf_counter() - began
    for _ in range(3):
        infer()
    row["infer_ms"] = milliseconds(infer)
    surrogate.graphs = type(surrogate.graphs)()
    torch.cuda.empty_cache()
    step = StepGraphs(loss_of(surrogate, case), list(surrogate.parameters()))
    torch.cuda.synchronize()
    began = time.perf_counter()
    step("train", context, target, num_points=points)
    torch.cuda.synchronize()
    row["first_step_s"] = time.perf_counter() - began
    torch.cuda.reset_peak_memory_stats()
    loss_of(surrogate, case)(context, target)[0].backward()
    row["train_gb"] = torch.cuda.max_memory_allocated() / 1e9
    row["train_eager_ms"] = milliseconds(lambda: loss_of(surrogate, case)(context, target)[0].backward(), 0.5)
    call: Callable[[], object] = lambda: step("train", context, target, num_points=points)  # noqa: E731
    if case.optimizer:
        optimizer = torch.optim.AdamW(surrogate.parameters(), 1e-4, fused=True)
        graph = call

        def call() -> None:
            graph()
            torch.nn.utils.clip_grad_norm_(surrogate.parameters(), 1.0, foreach=True)
            optimizer.step()

    for _ in range(3):
        call()
    row["train_ms"] = milliseconds(call)
    row["floor_infer_ms"], row["floor_train_ms"] = (
        1e3 * seconds for seconds in floor_seconds(surrogate, case.batch, case.steps)
    )
    return row


class TextbookKernel:
    """γ at every point and the mean after it, as the paper writes it."""

    @staticmethod
    def factors(self: AxialKernel, x: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
        phi = self.norm(axial_mean(self.gamma(x), [None] * grid.num_axes, self.m))
        gamma, norm = self.gamma, self.norm
        self.gamma, self.norm = torch.nn.Identity(), torch.nn.Identity()
        try:
            return self.encode(phi, grid)
        finally:
            self.gamma, self.norm = gamma, norm


def measure_textbook(case: Case, *, compiled: bool) -> dict[str, float]:
    """The paper's order of operations without our kernels: eager in TF32, or compiled in bfloat16."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    os.environ["FACTFORMER_FUSED"] = "off"
    kept, AxialKernel.factors = AxialKernel.factors, TextbookKernel.factors
    try:
        surrogate, context, target = case.surrogate(), case.frames(10), case.frames(case.steps)
        grid = surrogate.problem.grid
        predict = torch.compile(surrogate.predict, dynamic=False) if compiled else surrogate.predict

        def call() -> Tensor:
            with torch.autocast("cuda", torch.bfloat16, enabled=compiled):
                return predict(context, case.steps, grid)

        def infer() -> None:
            with torch.no_grad():
                call()

        def train() -> None:
            surrogate.zero_grad(set_to_none=True)
            metrics.loss(call(), target, surrogate.problem.output_slices).backward()

        infer(), infer()
        row = {"infer_ms": milliseconds(infer)}
        train(), train()
        torch.cuda.reset_peak_memory_stats()
        row["train_ms"] = milliseconds(train)
        row["train_gb"] = torch.cuda.max_memory_allocated() / 1e9
        return row
    finally:
        AxialKernel.factors = kept
        os.environ["FACTFORMER_FUSED"] = "auto"
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        torch._dynamo.reset()
        torch.cuda.empty_cache()


def check(
    grid: tuple[int, ...], batch: int, steps: int, overrides: dict[str, Any], channels: int = 1
) -> dict[str, float]:
    """Errors of the fused bfloat16 path and the plain float32 path against float64, forward and gradients."""
    case = Case("check", grid, batch, steps, {**overrides, "depth": 2}, channels)
    context, target = case.frames(10), case.frames(steps)

    def run(dtype: torch.dtype, mode: str) -> list[Tensor]:
        os.environ["FACTFORMER_FUSED"] = mode
        surrogate = case.surrogate()
        with torch.no_grad():
            for parameter in surrogate.parameters():  # fresh kernels are tiny: make all parts count
                parameter.add_(0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)).cuda())
        if dtype == torch.float64:
            surrogate = surrogate.double()
        working = torch.float64 if dtype == torch.float64 else torch.float32
        with torch.autocast("cuda", torch.bfloat16, enabled=dtype == torch.bfloat16):
            prediction = surrogate.predict(context.to(working), steps, surrogate.problem.grid)
        value = metrics.loss(prediction, target.to(working), surrogate.problem.output_slices)
        grads = torch.autograd.grad(value, list(surrogate.parameters()))
        os.environ["FACTFORMER_FUSED"] = "auto"
        return [prediction.double(), torch.cat([g.double().flatten() for g in grads])]

    exact = run(torch.float64, "off")
    row = {}
    for name, dtype, mode in (
        ("fused bf16", torch.bfloat16, "auto"),
        ("plain bf16", torch.bfloat16, "off"),
        ("plain fp32", torch.float32, "off"),
    ):
        got = run(dtype, mode)
        for what, a, b in zip(("forward", "gradient"), got, exact, strict=True):
            row[f"{name} {what}"] = float(((a - b).norm() / b.norm()).detach())
    return row


def profile(case: Case, training: bool, rows: int = 30) -> None:
    """Time by kernel of one call without a graph."""
    surrogate, context, target = case.surrogate(), case.frames(10), case.frames(case.steps)

    def call() -> None:
        if training:
            loss_of(surrogate, case)(context, target)[0].backward()
        else:
            with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
                surrogate.predict(context, case.steps, surrogate.problem.grid)

    call()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as result:
        call()
        torch.cuda.synchronize()
    events = sorted(result.key_averages(), key=lambda e: -e.self_device_time_total)
    total = sum(e.self_device_time_total for e in events) / 1e3
    print(
        f"{case.name} {'training' if training else 'inference'}: {total:.2f} ms in "
        f"{sum(e.count for e in events)} kernels"
    )
    for event in events[:rows]:
        print(f"  {event.self_device_time_total / 1e3:8.3f} ms {event.count:5d} × {event.key[:90]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="*", default=["128", "256", "box", "64"], choices=list(CASES))
    parser.add_argument("--check", action="store_true", help="errors against float64 first")
    parser.add_argument("--profile", nargs="*", default=[], choices=list(CASES), help="time by kernel of these cases")
    parser.add_argument("--eager", action="store_true", help="also the textbook formulation, eager in TF32")
    parser.add_argument("--compare", action="store_true", help="that, and compiled in bfloat16")
    parser.add_argument("--out", type=Path, help="JSON file for the numbers")
    arguments = parser.parse_args()
    began = time.perf_counter()
    table: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "command": " ".join(["python", *sys.argv]),
        "cases": {},
    }
    if arguments.check:
        table["checks"] = {}
        for name, sizes in CHECKS.items():
            row = table["checks"][name] = check(*sizes)
            print(name, "  ".join(f"{key} {value:.1e}" for key, value in row.items()), flush=True)
    for name in arguments.profile:
        profile(CASES[name], False)
        profile(CASES[name], True, rows=45)
        torch.cuda.empty_cache()
    for name in arguments.cases:
        case = CASES[name]
        row = {"ours": measure_ours(case)}
        torch.cuda.empty_cache()
        if arguments.eager or arguments.compare:
            row["textbook eager TF32"] = measure_textbook(case, compiled=False)
        if arguments.compare:
            row["textbook bf16 compiled"] = measure_textbook(case, compiled=True)
        table["cases"][case.name] = row
        for way, numbers in row.items():
            print(f"{case.name:22s} {way:24s}", "  ".join(f"{k} {v:.3f}" for k, v in numbers.items()), flush=True)
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        table |= provenance(seed=0, seconds=time.perf_counter() - began, device=DEVICE)
        arguments.out.write_text(json.dumps(table, indent=2) + "\n")


if __name__ == "__main__":
    main()
