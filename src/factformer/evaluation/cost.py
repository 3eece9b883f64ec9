"""What a model costs: seconds, peak memory and floating-point operations of inference and of a training step.

One `Case` is one row of a benchmark. On a GPU cases run here, and running out of memory is caught. On a CPU
each runs in a process of its own, so that its resident memory starts fresh, and under a limit, so that a case
that is too large ends with an error instead of taking the machine down.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from factformer import engine
from factformer._support.documents import finite
from factformer._support.text import first_line
from factformer.batch import Batch
from factformer.errors import UserError
from factformer.evaluation.memory import MEGABYTE, peak_memory
from factformer.evaluation.timing import autocast, median_seconds
from factformer.problem import Problem
from factformer.surrogate import Surrogate, build_surrogate

OUT_OF_MEMORY = "OOM"


@dataclass(frozen=True)
class Case:
    """A surrogate of a problem, the batch it is fed, and where."""

    label: str
    problem: Problem
    model: str
    overrides: dict[str, Any] = field(default_factory=dict)
    batch_size: int = 4
    marching_steps: int = 4
    device: str = "cpu"
    precision: str = "32-true"
    training: bool = True
    """Whether to measure forward + backward too."""

    def build(self) -> Surrogate:
        steps = self.marching_steps
        surrogate = build_surrogate(self.problem, self.model, marching_steps=steps, **self.overrides)
        engine.attach(surrogate)
        return surrogate

    def batch(self, surrogate: Surrogate) -> Batch:
        return random_batch(surrogate, self.batch_size, self.marching_steps)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; `Case.from_dict` reads it back."""
        values = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        return {**values, "problem": self.problem.to_dict()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Case:
        return cls(**{**values, "problem": Problem.from_dict(values["problem"])})


def random_batch(surrogate: Surrogate, size: int, num_frames: int, generator: torch.Generator | None = None) -> Batch:
    """White noise with the statistics of the surrogate's data, enough to predict ``num_frames``."""
    problem, normalizer = surrogate.problem, surrogate.normalizer
    grid, context = problem.grid.shape, problem.num_context_frames
    shapes = {"context": (context, *grid), "static": grid, "forcing": (context + num_frames, *grid), "parameters": ()}
    parts: dict[str, Tensor] = {}
    for kind, shape in shapes.items():
        mean, std = (getattr(normalizer, f"{kind}_{moment}") for moment in ("mean", "std"))
        if mean is not None:
            noise = torch.randn(size, *shape, len(mean), generator=generator)
            parts[kind] = noise.to(mean.device) * std + mean
    if problem.masked:
        parts["mask"] = torch.ones(size, *grid, dtype=torch.bool, device=normalizer.state_mean.device)
    return Batch(**parts)


def measure(case: Case, *, memory_limit_mb: float | None = None, timeout_seconds: float = 900.0) -> dict[str, Any]:
    """The row of ``case``: settings, ``status`` (``ok``, ``OOM`` or ``failed (why)``) and measurements.

    ``memory_limit_mb`` caps what a case on the CPU may allocate; by default 90 % of what is free.
    """
    row: dict[str, Any] = {
        **case.to_dict(),
        "problem": case.problem.name,
        "grid": list(case.problem.grid.shape),
        "status": "ok",
        **flops(case),
    }
    if torch.device(case.device).type == "cuda":
        row.update(_measure_guarded(case))
        torch.cuda.empty_cache()
    else:
        row.update(_measure_apart(case, memory_limit_mb or 0.9 * free_memory_mb(), timeout_seconds))
    return row


def flops(case: Case) -> dict[str, Any]:
    """Floating-point operations of one call and of a training step, counted without running it.

    Matrix products and convolutions count; Fourier transforms do not, which favours spectral models.
    """
    # Fake tensors carry shapes alone, so the count costs neither time nor memory.
    with FakeTensorMode():
        surrogate = case.build()
        batch = case.batch(surrogate)
        result: dict[str, Any] = {"parameters": surrogate.num_parameters}
        with FlopCounterMode(display=False) as forward, torch.no_grad():
            _predict(surrogate, batch, case)
        result["forward_flops"] = forward.get_total_flops()
        if case.training:
            with FlopCounterMode(display=False) as training:
                _predict(surrogate.train(), batch, case).square().mean().backward()
            result["training_flops"] = training.get_total_flops()
    return result


def measure_here(case: Case) -> dict[str, Any]:
    """Times and memory of ``case`` in this process; runs out of memory with an exception.

    ``encoder_seconds`` is the way to the latent field (frame encoder, backbone, boundary block) and
    ``propagator_seconds`` the latent marching, as in the paper's Table 4; ``forward_seconds`` has the decoder
    on top. Calls are launched one by one: on a GPU no recorded graph hides the difference between the parts.
    """
    device = torch.device(case.device)
    torch.manual_seed(0)
    surrogate = case.build().to(device)
    batch = case.batch(surrogate).to(device)
    result: dict[str, Any] = {}
    with torch.no_grad(), autocast(device, case.precision):
        surrogate.eval()
        _predict(surrogate, batch, case)  # kernels compiled and tables built are not the call's own
        with peak_memory(device) as peak:
            _predict(surrogate, batch, case)
        result["forward_memory_mb"] = peak.megabytes
        result["forward_seconds"] = median_seconds(lambda: _predict(surrogate, batch, case), device)
        grid, steps = surrogate.problem.grid, case.marching_steps
        result["encoder_seconds"] = median_seconds(lambda: surrogate.encode(batch, grid), device)
        latent = surrogate.encode(batch, grid)
        result["propagator_seconds"] = median_seconds(lambda: surrogate.marching(latent, steps), device)
        del latent
    if case.training:
        surrogate.train()

        def step() -> None:
            surrogate.zero_grad(set_to_none=True)
            with autocast(device, case.precision):
                loss = _predict(surrogate, batch, case).square().mean()
            loss.backward()

        step()
        with peak_memory(device) as peak:
            step()
        result["training_memory_mb"] = peak.megabytes
        result["training_seconds"] = median_seconds(step, device)
    return result


def free_memory_mb() -> float:
    """Memory that a process may still take: what the machine has free, within the limit of the container."""
    free = float("inf")
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) * 1024
    limit, used = _lines("/sys/fs/cgroup/memory.max"), _lines("/sys/fs/cgroup/memory.current")
    if limit and used and limit[0].isdigit():
        free = min(free, int(limit[0]) - int(used[0]))
    return free / MEGABYTE


def _predict(surrogate: Surrogate, batch: Batch, case: Case) -> Tensor:
    return engine.predict(surrogate, batch, case.marching_steps, surrogate.problem.grid)


def _measure_guarded(case: Case) -> dict[str, Any]:
    """`measure_here` with failures as a status; a user's mistake stays one."""
    try:
        return measure_here(case)
    except UserError:
        raise
    except (MemoryError, RuntimeError) as error:
        text = str(error)
        types = (MemoryError, torch.OutOfMemoryError)
        out_of_memory = isinstance(error, types) or "can't allocate memory" in text
        return {"status": OUT_OF_MEMORY if out_of_memory else f"failed ({first_line(error)})"}


def _measure_apart(case: Case, memory_limit_mb: float, timeout_seconds: float) -> dict[str, Any]:
    threads = torch.get_num_threads()
    task = {"case": case.to_dict(), "memory_limit_mb": memory_limit_mb, "threads": threads}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "factformer.evaluation.cost"],
            input=json.dumps(task),
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=timeout_seconds,
            check=False,
            env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        )
    except subprocess.TimeoutExpired:
        return {"status": f"failed (took more than {timeout_seconds:g} s)"}
    if done.returncode < 0:
        return {"status": OUT_OF_MEMORY if done.returncode == -9 else f"failed (signal {-done.returncode})"}
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        # Libraries below torch report a failed allocation in words of their own and end the process.
        memory = any(sign in done.stderr for sign in ("MemoryError", "bad_alloc", "can't allocate memory"))
        return {"status": OUT_OF_MEMORY if memory else f"failed ({last})"}
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _limit_memory(megabytes: float) -> None:
    """Make allocations beyond ``megabytes`` from now on fail."""
    try:
        import resource
    except ImportError:  # not a POSIX system
        return
    if not math.isfinite(megabytes):
        return
    pages = [line for line in _lines("/proc/self/status") if line.startswith("VmData:")]
    used = int(pages[0].split()[1]) * 1024 if pages else 0
    limit = used + int(megabytes * MEGABYTE)
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (limit if hard < 0 else min(limit, hard), hard))


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def _child() -> None:
    task = json.load(sys.stdin)
    torch.set_num_threads(task["threads"])
    _limit_memory(task["memory_limit_mb"])
    print(json.dumps(finite(_measure_guarded(Case.from_dict(task["case"])))))


if __name__ == "__main__":
    _child()
