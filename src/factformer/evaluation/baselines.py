"""What `factformer.evaluation.comparison` compares: the sizes, our network, and baselines that compute the same.

The baselines are textbook PyTorch: they apply γ at every point and take the mean after it, as the paper writes it. They
run eagerly with float32 in TF32, or in bfloat16 through ``torch.compile``.
"""

from __future__ import annotations

import math
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from factformer import engine, metrics
from factformer.batch import Batch
from factformer.grid import Grid
from factformer.kernels.graphs import StepGraphs
from factformer.nn.attention import FactorizedAttention
from factformer.nn.attention.axial_kernel import AxialKernel, axial_mean
from factformer.problem import Field, Problem
from factformer.surrogate import Surrogate, build_surrogate

PLANE = {"depth": 4, "heads": 8, "kernel_dim": 128}
BOX = {"depth": 4, "heads": 6, "kernel_dim": 192}
EAGER, COMPILED, OURS = "textbook eager TF32", "textbook bf16 compiled", "ours"


@dataclass(frozen=True)
class Setting:
    """One row of the table: a grid, a batch, and how far one call marches."""

    name: str
    shape: tuple[int, ...]
    batch: int
    steps: int
    overrides: dict[str, Any] = field(default_factory=dict)
    channels: int = 1
    optimizer: bool = False
    """Whether our training step includes clipping and AdamW; the textbook's never does."""
    frames: int = 10

    def surrogate(self, device: str) -> Surrogate:
        torch.manual_seed(0)
        grid = Grid(self.shape, 2 * math.pi, True)
        problem = Problem("comparison", grid, (Field("field", self.channels),), num_context_frames=self.frames)
        return build_surrogate(problem, marching_steps=self.steps, **self.overrides).to(device)

    def fields(self, num: int, device: str) -> Tensor:
        generator = torch.Generator(device).manual_seed(num)
        shape = (self.batch, num, *self.shape, self.channels)
        return torch.randn(shape, device=device, generator=generator)


SETTINGS = {
    "128": Setting("128² × 4", (128, 128), 4, 4, PLANE),
    "256": Setting("256² × 10", (256, 256), 10, 4, PLANE),
    "box": Setting("64³ × 4", (64, 64, 64), 4, 2, BOX),
    "box4": Setting("64³ × 4, 4 channels", (64, 64, 64), 4, 2, BOX, channels=4),
    "64": Setting("64² × 32 + optimiser", (64, 64), 32, 4, PLANE, optimizer=True),
}


class Runner(ABC):
    """A network and a batch; ``infer`` and ``train`` do one call and one training step."""

    def __init__(self, setting: Setting, device: str) -> None:
        self.setting, self.device = setting, device
        self.surrogate = setting.surrogate(device)
        self.context, self.target = setting.fields(setting.frames, device), setting.fields(setting.steps, device)

    @abstractmethod
    def infer(self) -> None:
        """One call."""

    @abstractmethod
    def train(self) -> None:
        """One training step."""

    @contextmanager
    def unrecorded(self) -> Iterator[None]:
        """A step whose memory is to be seen must not run inside the memory of a record."""
        yield

    def loss(self, prediction: Tensor) -> Tensor:
        return metrics.loss(prediction, self.target, self.surrogate.problem.state_slices)


class TextbookKernel(AxialKernel):
    """γ and the mean in the paper's order: γ at every point, then the mean. For grids of equal weights."""

    @classmethod
    def like(cls, kernel: AxialKernel) -> TextbookKernel:
        """The textbook's kernel with the weights of ours."""
        copy = cls(kernel.m, kernel.gamma.in_features, kernel.heads, kernel.kernel_dim, kernel.options)
        copy.load_state_dict(kernel.state_dict())
        return copy.to(kernel.gamma.weight.device)

    def factors(self, x: Tensor, grid: Grid, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        assert mask is None
        return self.encode_projection(axial_mean(self.gamma(x), [None] * grid.num_axes, self.m), grid)


class Textbook(Runner):
    def __init__(self, setting: Setting, device: str, *, compiled: bool) -> None:
        super().__init__(setting, device)
        for module in list(self.surrogate.modules()):
            if isinstance(module, FactorizedAttention):
                module.kernels = nn.ModuleList(TextbookKernel.like(kernel) for kernel in module.axes())
        self.compiled = compiled
        self.predict: Callable[..., Tensor] = self.surrogate.predict
        if compiled:
            with torch.no_grad():  # tables of the grid are made now: made while compiling, they would compile it twice
                self.call()
            self.predict = torch.compile(self.predict, dynamic=False)

    def call(self) -> Tensor:
        with tf32_products(), torch.autocast(self.device, torch.bfloat16, enabled=self.compiled):
            return self.predict(Batch(self.context), self.setting.steps, self.surrogate.problem.grid)

    def infer(self) -> None:
        with torch.no_grad():
            self.call()

    def train(self) -> None:
        self.surrogate.zero_grad(set_to_none=True)
        with tf32_products():
            self.loss(self.call()).backward()


class Ours(Runner):
    """The surrogate as a user gets it, with recorded calls and steps."""

    def __init__(self, setting: Setting, device: str) -> None:
        super().__init__(setting, device)
        engine.attach(self.surrogate)
        self.optimizer: torch.optim.Optimizer | None = None
        if setting.optimizer:
            on_gpu = device != "cpu"
            rate = torch.tensor(1e-4, device=device) if on_gpu else 1e-4
            parameters = self.surrogate.parameters()
            self.optimizer = torch.optim.AdamW(parameters, rate, fused=on_gpu, capturable=on_gpu)
        finish = self.finish if setting.optimizer else None
        self.step = StepGraphs(self.compute, list(self.surrogate.parameters()), finish)

    def autocast(self) -> AbstractContextManager[object]:
        return torch.autocast(self.device, torch.bfloat16, enabled=self.device != "cpu", cache_enabled=False)

    def infer(self) -> None:
        # Not forward(), which waits for the device to look at the input.
        grid, steps = self.surrogate.problem.grid, self.setting.steps
        with torch.inference_mode(), self.autocast():
            self.surrogate.execute(Batch(self.context), steps, grid)

    def compute(self, context: Tensor, _: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        with self.autocast():
            prediction = engine.predict(self.surrogate, Batch(context), self.setting.steps, self.surrogate.problem.grid)
        return self.loss(prediction), {}

    def train(self) -> None:
        self.step("train", self.context, self.target)

    @contextmanager
    def unrecorded(self) -> Iterator[None]:
        self.step.enabled = False
        try:
            yield
        finally:
            self.step.enabled = True

    def finish(self) -> dict[str, Tensor]:
        assert self.optimizer is not None
        norm = nn.utils.clip_grad_norm_(self.surrogate.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return {"gradient_norm": norm}


def runner_of(way: str, setting: Setting, device: str) -> Runner:
    if way == OURS:
        return Ours(setting, device)
    return Textbook(setting, device, compiled=way == COMPILED)


@contextmanager
def tf32_products() -> Iterator[None]:
    """Products of 32-bit numbers use the tensor cores."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def milliseconds(call: Callable[[], object], device: str, seconds: float = 0.5) -> float:
    """Time of a call when many follow each other, as in a roll-out or a training: the median over groups of calls.

    On a GPU by its own events around each group, so that what the host does between calls counts only where the device
    has to wait for it.
    """
    began = time.perf_counter()
    call()
    if device != "cpu":
        torch.cuda.synchronize()
    group = max(1, min(20, int(0.02 / max(time.perf_counter() - began, 1e-6))))
    times: list[float] = []
    while len(times) < 5 or (time.perf_counter() - began < seconds and len(times) < 200):
        if device == "cpu":
            start = time.perf_counter()
            for _ in range(group):
                call()
            times.append(1e3 * (time.perf_counter() - start) / group)
            continue
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        for _ in range(group):
            call()
        last.record()
        last.synchronize()
        times.append(first.elapsed_time(last) / group)
    return statistics.median(times)


def measure(runner: Runner, mode: str) -> dict[str, float]:
    """Milliseconds of ``infer`` or ``train``, and for a training step its peak memory; call `prepare` before."""
    call: Callable[[], None] = getattr(runner, mode)
    device = runner.device
    result = {f"{mode}_ms": milliseconds(call, device)}
    if mode == "train" and device != "cpu":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        with runner.unrecorded():
            call()
        torch.cuda.synchronize()
        result["train_gb"] = torch.cuda.max_memory_allocated() / 1e9
    return result


def prepare(runner: Runner, mode: str) -> float:
    """Seconds of the first call; after it and two more everything is compiled and recorded."""
    call: Callable[[], None] = getattr(runner, mode)
    began = time.perf_counter()
    call()
    if runner.device != "cpu":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    for _ in range(2):
        call()
    return seconds
