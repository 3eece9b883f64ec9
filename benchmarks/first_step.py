"""Seconds until a fresh process has made its first call and its first training step, with all kernels compiled.

python benchmarks/first_step.py            with whatever Triton has in its cache; twice: cold, then warm
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tempfile
import time


def measure() -> None:
    import torch

    from factformer import Field, Grid, Problem, build_surrogate, metrics
    from factformer.kernels.graphs import StepGraphs

    torch.zeros(1, device="cuda")
    problem = Problem("p", Grid((128, 128), 2 * math.pi, True), (Field("field"),), num_context_frames=10)
    surrogate = build_surrogate(problem, depth=4, heads=8, kernel_dim=128, marching_steps=4).cuda()
    context, target = torch.randn(4, 10, 128, 128, 1).cuda(), torch.randn(4, 4, 128, 128, 1).cuda()

    def compute(frames: torch.Tensor, truth: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        with torch.autocast("cuda", torch.bfloat16):
            return metrics.loss(surrogate(frames), truth, problem.state_slices), {}

    began = time.perf_counter()
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        surrogate(context)
    torch.cuda.synchronize()
    called = time.perf_counter()
    step = StepGraphs(compute, list(surrogate.parameters()))
    step("step", context, target)
    torch.cuda.synchronize()
    stepped = time.perf_counter()
    step("step", context, target)
    torch.cuda.synchronize()
    recorded = time.perf_counter()
    print(
        f"first call {called - began:.2f} s, first step {stepped - called:.2f} s, "
        f"second step (recorded) {recorded - stepped:.2f} s",
        flush=True,
    )


def main() -> None:
    if "--measure" in sys.argv:
        measure()
        return
    with tempfile.TemporaryDirectory() as folder:
        for state in ("cold", "warm"):
            print(f"{state}: ", end="", flush=True)
            command = [sys.executable, __file__, "--measure"]
            subprocess.run(command, env={**os.environ, "TRITON_CACHE_DIR": folder}, check=True)


if __name__ == "__main__":
    main()
