"""Speed of one model call and one training step on a GPU, against textbook formulations and the chip's floor.

    python benchmarks/gpu_model.py                      our numbers
    python benchmarks/gpu_model.py --check --profile    correctness first, then time by kernel
    python benchmarks/gpu_model.py --eager              with the textbook formulation, eager in TF32
    python benchmarks/gpu_model.py --compare            what ``factformer benchmark model --compare`` does

All numbers of a table come from one run. ``--out FILE`` keeps them as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from factformer import metrics
from factformer.batch import Batch
from factformer.evaluation.comparison import compare
from factformer.evaluation.contenders import BOX, COMPILED, CONTESTS, EAGER, OURS, PLANE, Contest, Ours
from factformer.report.analysis import comparison_table

DEVICE = "cuda"
PLUS = {"model": "factformer_plus"}
RIVALS = ("dilated_resnet", "fno", "ffno", "linear_attention", "axial_transformer")
CASES = {
    **CONTESTS,
    "plus": Contest("factformer_plus, 128² × 4", (128, 128), 4, 4, {**PLANE, **PLUS}),
    "plus-box": Contest("factformer_plus, 64³ × 1, 4 channels", (64, 64, 64), 1, 2, {**BOX, **PLUS}, channels=4),
}
PROFILED = CASES | {name: Contest(f"{name}, 128² × 8", (128, 128), 8, 4, {"model": name}) for name in RIVALS}
CHECKS = {
    "2-D 40×36": ((40, 36), 2, 3, PLANE),
    "3-D 20×17×24": ((20, 17, 24), 1, 2, BOX, 4),
    "1-D 300": ((300,), 3, 2, PLANE),
    "2-D 300×60 low rank": ((300, 60), 1, 2, {**PLANE, "kernel_dim": 64}),
}


def check(
    grid: tuple[int, ...], batch: int, steps: int, overrides: dict[str, Any], channels: int = 1
) -> dict[str, float]:
    """Errors of the fused bfloat16 path and the plain float32 path against float64, forward and gradients."""
    case = Contest("check", grid, batch, steps, {**overrides, "depth": 2}, channels)
    context, target = case.fields(10, DEVICE), case.fields(steps, DEVICE)

    def run(dtype: torch.dtype, mode: str) -> list[Tensor]:
        os.environ["FACTFORMER_FUSED"] = mode
        surrogate = case.surrogate(DEVICE)
        with torch.no_grad():
            for parameter in surrogate.parameters():  # fresh kernels are tiny: make all parts count
                parameter.add_(0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)).cuda())
        if dtype == torch.float64:
            surrogate = surrogate.double()
        working = torch.float64 if dtype == torch.float64 else torch.float32
        with torch.autocast("cuda", torch.bfloat16, enabled=dtype == torch.bfloat16):
            prediction = surrogate.predict(Batch(context.to(working)), steps, surrogate.problem.grid)
        value = metrics.loss(prediction, target.to(working), surrogate.problem.state_slices)
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


def profile(contest: Contest, training: bool, rows: int = 30) -> None:
    """Time by kernel of one call without a graph."""
    runner = Ours(contest, DEVICE)

    def call() -> None:
        if training:
            runner.step._step(runner.context, runner.target)
        else:
            with torch.no_grad(), runner.autocast():
                runner.surrogate.predict(Batch(runner.context), contest.steps, runner.surrogate.problem.grid)

    call()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as result:
        call()
        torch.cuda.synchronize()
    # Rows of the runtime, which launches them, take no time on the device.
    events = [e for e in result.key_averages() if e.self_device_time_total > 0]
    events.sort(key=lambda e: -e.self_device_time_total)
    total = sum(e.self_device_time_total for e in events) / 1e3
    print(
        f"{contest.name} {'training' if training else 'inference'}: {total:.2f} ms in "
        f"{sum(e.count for e in events)} kernels"
    )
    for event in events[:rows]:
        print(f"  {event.self_device_time_total / 1e3:8.3f} ms {event.count:5d} × {event.key[:90]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="*", default=list(CONTESTS), choices=list(CASES))
    parser.add_argument("--check", action="store_true", help="errors against float64 first")
    parser.add_argument("--profile", nargs="*", default=[], choices=list(PROFILED), help="time by kernel of these")
    parser.add_argument("--eager", action="store_true", help="also the textbook formulation, eager in TF32")
    parser.add_argument("--compare", action="store_true", help="that, and compiled in bfloat16")
    parser.add_argument("--out", type=Path, help="JSON file for the numbers")
    arguments = parser.parse_args()
    checks: dict[str, Any] = {}
    if arguments.check:
        for name, sizes in CHECKS.items():
            row = checks[name] = check(*sizes)
            print(name, "  ".join(f"{key} {value:.1e}" for key, value in row.items()), flush=True)
    for name in arguments.profile:
        profile(PROFILED[name], False)
        profile(PROFILED[name], True, rows=45)
        torch.cuda.empty_cache()
    ways = [way for way, on in ((EAGER, arguments.eager or arguments.compare), (COMPILED, arguments.compare)) if on]
    rows = [CASES[name] for name in arguments.cases]
    if not rows:
        return
    table = compare(rows, ways=[*ways, OURS], device=DEVICE, report=lambda row: print(json.dumps(row), flush=True))
    print(comparison_table(table).to_markdown())
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps({**table, "checks": checks}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
