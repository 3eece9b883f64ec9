"""What the checks share: options, a training step of any problem, times, and the file of a result."""

from __future__ import annotations

import argparse
import gc
import math
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from factformer import Field, Grid, Problem, build_surrogate, engine, metrics
from factformer._support.text import first_line
from factformer.batch import Batch
from factformer.evaluation.baselines import milliseconds
from factformer.evaluation.provenance import provenance, write_json
from factformer.kernels._triton.limits import Limits
from factformer.kernels.graphs import StepGraphs

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TINY = {"dim": 16, "depth": 1, "heads": 2, "head_dim": 8, "kernel_dim": 8}


def options(doc: str | None, *more: tuple[str, dict[str, Any]]) -> argparse.Namespace:
    """``--out FILE`` and ``--tiny``, which shows on a CPU that a check runs, and ``more``."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tiny", action="store_true", help="sizes that a CPU does in seconds")
    for name, settings in more:
        parser.add_argument(name, **settings)
    return parser.parse_args()


def keep(out: Path, check: str, began: float, **found: Any) -> None:
    """Write a result with what made it."""
    result = {"check": check, **found, **provenance(seed=0, seconds=time.perf_counter() - began, device=DEVICE)}
    result["command"] = shlex.join(["python", "-m", f"lab.checks.{check}", *sys.argv[1:]])
    write_json(out, result)


@dataclass
class Step:
    """A surrogate on random fields, whose training step is recorded on a GPU; bfloat16 there, float32 on a CPU."""

    shape: tuple[int, ...]
    batch_size: int
    steps: int
    model: dict[str, Any]
    parts: dict[str, Any] = field(default_factory=dict)
    """Of the problem: ``parameters``, ``static``, ``forcing``, ``masked``."""
    frames: int = 10
    channels: int = 1
    mode: engine.Mode | None = None
    limits: Limits | None = None
    optimizer: bool = True

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        grid = Grid(self.shape, 2 * math.pi, True)
        state = (Field("field", self.channels),)
        problem = Problem("check", grid, state, num_context_frames=self.frames, **self.parts)
        sizes = dict(self.model)
        self.surrogate = build_surrogate(problem, sizes.pop("name", "factformer"), marching_steps=self.steps, **sizes)
        self.surrogate.to(DEVICE)
        engine.attach(self.surrogate, self.mode, limits=self.limits)
        self.batch = self._batch(problem).to(DEVICE)
        self.target = torch.randn(self.batch_size, self.steps, *self.shape, self.channels, device=DEVICE)
        weights = list(self.surrogate.parameters())
        on_gpu = DEVICE == "cuda"
        rate = torch.tensor(1e-4, device=DEVICE) if on_gpu else 1e-4
        self.moving = torch.optim.AdamW(weights, rate, fused=on_gpu, capturable=on_gpu) if self.optimizer else None
        self.graphs = StepGraphs(self._compute, weights, self._finish if self.optimizer else None)

    def _batch(self, problem: Problem) -> Batch:
        generator = torch.Generator().manual_seed(1)
        rows, length = self.batch_size, self.frames + self.steps

        def noise(*sizes: int) -> Tensor:
            return torch.randn(rows, *sizes, generator=generator)

        mask = None
        if problem.masked:  # a body in the middle
            mask = torch.ones(rows, *self.shape, dtype=torch.bool)
            mask[(slice(None), *(slice(size // 3, size // 2) for size in self.shape))] = False
        return Batch(
            noise(self.frames, *self.shape, self.channels),
            noise(*self.shape, problem.num_static_channels) if problem.static else None,
            noise(length, *self.shape, problem.num_forcing_channels) if problem.forcing else None,
            noise(len(problem.parameters)) if problem.parameters else None,
            mask,
        )

    def _autocast(self) -> torch.autocast:
        return torch.autocast(DEVICE, torch.bfloat16, enabled=DEVICE == "cuda", cache_enabled=False)

    def _compute(self, *tensors: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        batch, target = self.batch.filled(tensors[:-1]), tensors[-1]
        with self._autocast():
            prediction = engine.predict(self.surrogate, batch, self.steps, self.surrogate.problem.grid)
        return metrics.loss(prediction, target, self.surrogate.problem.state_slices, batch.mask), {}

    def _finish(self) -> dict[str, Tensor]:
        assert self.moving is not None
        norm = torch.nn.utils.clip_grad_norm_(self.surrogate.parameters(), 1.0)
        self.moving.step()
        self.moving.zero_grad()
        return {"gradient_norm": norm}

    def train(self) -> None:
        """One update, or forward and backward pass alone."""
        self.graphs("train", *self.batch.tensors, self.target)

    def infer(self) -> None:
        """One call."""
        with torch.inference_mode(), self._autocast():
            self.surrogate.execute(self.batch, self.steps, self.surrogate.problem.grid)

    def gradients(self) -> tuple[Tensor, Tensor]:
        """Prediction and all gradients, without a record."""
        weights = list(self.surrogate.parameters())
        with self._autocast():
            prediction = engine.predict(self.surrogate, self.batch, self.steps, self.surrogate.problem.grid)
        value = metrics.loss(prediction, self.target, self.surrogate.problem.state_slices, self.batch.mask)
        found = torch.autograd.grad(value, weights, allow_unused=True)
        flat = [torch.zeros_like(w) if g is None else g for w, g in zip(weights, found, strict=True)]
        return prediction.detach().double(), torch.cat([g.double().flatten() for g in flat])


def times(step: Step, modes: Sequence[str] = ("infer", "train"), seconds: float = 0.5) -> dict[str, Any]:
    """Milliseconds of calls and updates that follow each other, and the peak of memory of a training step."""
    found: dict[str, Any] = {"status": "ok"}
    try:
        for mode in modes:
            call = getattr(step, mode)
            for _ in range(3):  # compiled, recorded
                call()
            found[f"{mode}_ms"] = milliseconds(call, DEVICE, seconds)
        if "train" in modes and DEVICE == "cuda":
            found["train_gb"] = peak(step)
    except torch.OutOfMemoryError:
        found["status"] = "OOM"
    except Exception as error:  # one way that fails must not cost the others
        found["status"] = f"failed ({first_line(error)})"
    return found


def in_single_precision(
    shape: tuple[int, ...], batch_size: int, steps: int, model: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """Prediction and gradients of the plain layers without bfloat16."""
    step = Step(shape, batch_size, steps, model, mode="off", optimizer=False)
    step._autocast = lambda: torch.autocast(DEVICE, enabled=False)  # type: ignore[method-assign]
    prediction, gradients = step.gradients()
    del step
    forget()
    return prediction.cpu(), gradients.cpu()


def peak(step: Step) -> float:
    """GB allocated at most during an update that is not recorded."""
    step.graphs.clear()
    step.graphs.enabled = False
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    step.train()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() / 1e9


def forget() -> None:
    """Leave the memory empty for what comes next."""
    gc.collect()
    if DEVICE == "cuda":
        torch.cuda.empty_cache()


def relative(found: Tensor, exact: Tensor) -> float:
    return float((found - exact).norm() / exact.norm())
