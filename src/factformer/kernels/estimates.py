"""What a call must move and compute at least, and what a training step keeps in memory.

Both are counted from the sizes alone, for the fused kernels in bfloat16. The floor counts every tensor that the
fused stages cannot keep on the chip, read and written once per stage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from factformer.surrogate import Surrogate

BANDWIDTH = 4.3e12
"""Bytes per second of an H200 as measured with a copy, read and written."""
RATE = 7.8e14
"""Floating-point operations per second of its tensor cores in bfloat16, measured."""
NUMBER = 2
"""Bytes of a bfloat16."""
WORKSPACE = 10**8
"""Bytes of the libraries' workspaces and of partial sums."""


@dataclass(frozen=True)
class Sizes:
    """Channels and points of a surrogate on the grid of its latent field."""

    shape: tuple[int, ...]
    dim: int
    depth: int
    values: int
    latent: int
    width: int
    frames: int
    channels: int
    heads: int
    kernel_dim: int
    parameters: int

    @classmethod
    def of(cls, surrogate: Surrogate, shape: tuple[int, ...] | None = None) -> Sizes:
        config = surrogate.config
        values = getattr(config, "heads", 0) * getattr(config, "head_dim", 0)
        expand = surrogate.marching.expand
        problem = surrogate.problem
        grid = problem.grid if shape is None else problem.grid.resample(shape)
        return cls(
            surrogate.latent_grid(grid).shape,
            config.dim,
            config.depth,
            values,
            expand.out_features,
            expand.in_features,
            surrogate.encoder.num_frames,
            surrogate.decoder.project.out_features,
            getattr(config, "heads", 0),
            getattr(config, "kernel_dim", 0),
            surrogate.num_parameters,
        )

    @property
    def points(self) -> int:
        number = 1
        for size in self.shape:
            number *= size
        return number


@dataclass(frozen=True)
class Work:
    """The least that a call or a training step must do: bytes of device memory, and operations of its products."""

    num_bytes: float
    flops: float

    def seconds(self, bandwidth: float = BANDWIDTH, rate: float = RATE) -> float:
        """Bytes over bandwidth, or operations over their rate."""
        return max(self.num_bytes / bandwidth, self.flops / rate)


def least_work(
    surrogate: Surrogate, batch: int, num_steps: int, shape: tuple[int, ...] | None = None
) -> dict[str, Work]:
    """What one call (``infer``) and its training step (``train``) must move and compute on the fused kernels."""
    sizes = Sizes.of(surrogate, shape)
    n = batch * sizes.points
    u, v, z = n * sizes.dim * NUMBER, n * sizes.values * NUMBER, n * sizes.latent * NUMBER
    axes = len(sizes.shape)
    # Layer: field in; normed field out; values out; each contraction in and out; values and field in, field out.
    forward = sizes.depth * (3 * u + v + 2 * axes * v + v + 2 * u)
    forward += u + 2 * num_steps * z + n * sizes.frames * sizes.channels * 4
    # Backward: output network (two fields in, one out, values in twice, their gradient out), both gradients of each
    # contraction (two in, one out), values made again, projection's gradients, norm's gradient.
    backward = sizes.depth * (3 * u + u + v + u + 2 * v + axes * 3 * v + u + v + 2 * (u + v) + 4 * u)
    backward += num_steps * (10 * z) + 4 * u
    flops = 2 * n * sizes.dim * (2 * sizes.values + sizes.dim) + 2 * n * sizes.values * sum(sizes.shape)
    flops = sizes.depth * flops + num_steps * 2 * n * sizes.latent * sizes.dim * 3
    return {"infer": Work(forward, flops), "train": Work(forward + backward, 3 * flops)}


def floor_seconds(surrogate: Surrogate, batch: int, num_steps: int) -> tuple[float, float]:
    """The least time of one call and of its training step on an H200."""
    work = least_work(surrogate, batch, num_steps)
    return work["infer"].seconds(), work["train"].seconds()


def training_bytes(
    surrogate: Surrogate, batch: int, num_steps: int | None = None, shape: tuple[int, ...] | None = None
) -> int:
    """Peak memory of forward and backward pass of one call with the fused kernels, optimiser state not included.

    A layer keeps its input, the normed field, the hidden layer and one tensor of values per axis; projected values
    and everything elementwise is made again. The peak is in the backward pass of the marching steps.
    """
    sizes = Sizes.of(surrogate, shape)
    steps = num_steps or surrogate.marching_steps
    n, axes = batch * sizes.points, len(sizes.shape)
    u, v, z = n * sizes.dim * NUMBER, n * sizes.values * NUMBER, n * sizes.latent * NUMBER
    layers = sizes.depth * (3 * u + axes * v)
    # Queries, keys, kernels, means of each axis; Fourier features as table and encoded.
    along = sum(
        size * (2 * sizes.heads * sizes.kernel_dim + sizes.heads * size + 3 * sizes.dim) for size in sizes.shape
    )
    layers += sizes.depth * (batch * along * NUMBER + sizes.points * sizes.dim * 2 * NUMBER)
    # The field and the state that come in, states and their gradients; per step the decoder's and the hidden layers'.
    marching = n * sizes.width * NUMBER + 2 * (1 + steps) * z + 3 * steps * u
    frames = 3 * n * (sizes.frames + 2 * steps) * sizes.channels * 4
    return layers + marching + frames + 8 * sizes.parameters + WORKSPACE


def largest_batch(
    surrogate: Surrogate, memory: float, num_steps: int | None = None, shape: tuple[int, ...] | None = None
) -> int:
    """The largest batch whose training step fits into ``memory`` bytes; 0 if none does.

    One part in ten is left free: for the optimiser, for pieces between allocations and for what is not counted.
    """
    batch = 0
    while training_bytes(surrogate, batch + 1, num_steps, shape) <= 0.9 * memory:
        batch += 1
    return batch
