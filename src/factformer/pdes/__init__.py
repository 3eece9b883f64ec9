"""The problems, one file each, and `simulate`, which solves any of them."""

from __future__ import annotations

import math
from operator import index
from typing import Any

import numpy as np
import torch
from torch import Tensor

from factformer import catalog
from factformer.errors import UserError
from factformer.pdes._base import PDE as PDE
from factformer.pdes._base import Preset as Preset

__all__ = ["PDE", "Preset", "find_pde", "simulate"]


def find_pde(name: str) -> PDE:
    """The PDE of the catalog with this name; an unknown one lists the choices."""
    pde = catalog.find("pdes", name).pde
    assert isinstance(pde, PDE)
    return pde


def simulate(
    pde: str,
    initial: Any,
    num_frames: int | None = None,
    frame_dt: float | None = None,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    **parameters: Any,
) -> Tensor:
    """Solve a PDE from given initial states ``(batch, *grid, channel)``; ``(batch, frame, *grid, channel)``.

    ``pde`` is a name of the catalog and ``parameters`` are its own; an unknown one names the closest. Frame 0
    is the initial state and frame j the solution at ``j · frame_dt``; ``num_frames`` counts both. Defaults:
    the context and horizon of the problem, its frame interval, and the dtype and device of ``initial``.
    A steady problem maps the given coefficient to its solution, ``(batch, 1, *grid, channel)``.
    """
    equation = find_pde(pde)
    if device is not None:
        require_device(device)
    try:
        state = torch.as_tensor(np.ascontiguousarray(initial) if isinstance(initial, np.ndarray) else initial)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"{pde}: the initial state is no array of numbers: {error}") from None
    if state.is_complex():
        raise UserError(f"{pde}: the initial state holds complex numbers, need real ones")
    if dtype is None:
        dtype = state.dtype if state.dtype in (torch.float32, torch.float64) else torch.float32
    if dtype not in (torch.float32, torch.float64):
        raise UserError(f"simulate works in float32 and float64, got dtype {dtype}")
    state = state.to(device=device, dtype=dtype)
    problem = equation.problem(equation.presets["small"].resolution)
    _check_initial(equation, state, problem.grid.num_axes)
    if num_frames is None:
        num_frames = problem.num_context_frames + problem.horizon
    try:
        num_frames, frame_dt = index(num_frames), float(problem.frame_dt if frame_dt is None else frame_dt)
    except (TypeError, ValueError):
        got = f"{num_frames!r} and {frame_dt!r}"
        raise UserError(f"num_frames must be a whole number and frame_dt a number, got {got}") from None
    if num_frames < 1 or not 0 < frame_dt < math.inf:
        raise UserError(f"num_frames must be ≥ 1 and frame_dt > 0 and finite, got {num_frames} and {frame_dt}")
    if problem.steady and num_frames != 1:
        raise UserError(f"{pde} is steady: it has one frame, got num_frames={num_frames}")
    values = equation.parameters.parse(parameters)
    result: Tensor | None = None
    for number, frame in enumerate(equation.frames(state, num_frames, frame_dt, values)):
        if result is None:
            result = frame.new_empty((len(frame), num_frames, *frame.shape[1:]))
        result[:, number] = frame
    assert result is not None
    check_finite(pde, result)
    return result


def require_device(device: torch.device | str) -> None:
    """Raise in one line when the device is not there."""
    try:
        wanted = torch.device(device)
    except RuntimeError:
        wanted = None
    if wanted is None or wanted.type not in ("cpu", "cuda"):
        raise UserError(f"unknown device {str(device)!r}: use cpu, cuda or cuda:<number>")
    if wanted.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"device {str(device)!r} asked for, but there is no GPU here; use cpu (--device cpu)")
    if wanted.type == "cuda" and (wanted.index or 0) >= torch.cuda.device_count():
        raise UserError(f"device {str(device)!r} asked for, but there are {torch.cuda.device_count()} GPUs here")


def check_finite(pde: str, frames: Tensor, labels: list[str] | None = None) -> None:
    """Raise an error that names the trajectories with NaN or infinite values and the frame where they begin.

    ``labels`` says how to call the trajectories; by default by their place in the batch.
    """
    bad = ~torch.isfinite(frames.flatten(2)).all(-1).cpu()
    if not bad.any():
        return
    rows = bad.any(1).nonzero().flatten().tolist()
    first = int(bad[rows].int().argmax(1).min())
    names = ", ".join(labels[row] if labels else f"{row}" for row in rows[:8]) + ", …" * (len(rows) > 8)
    raise UserError(
        f"{pde}: the solution blew up (NaN) from frame {first} on in trajectory {names} of "
        f"{len(frames)}; use a smaller dt or check the initial state"
    )


def _check_initial(equation: PDE, state: Tensor, num_axes: int) -> None:
    channels = equation.num_initial_channels
    if state.ndim != num_axes + 2 or state.shape[-1] != channels or min(state.shape[1:-1], default=0) < 2:
        shape = "(batch, " + ", ".join(["size"] * num_axes) + f", {channels})"
        raise UserError(f"{equation.name}: the initial state has shape {tuple(state.shape)}, need {shape}")
    if not len(state):
        raise UserError(f"{equation.name}: the batch of initial states is empty")
    bad = ~torch.isfinite(state.flatten(1)).all(1)
    if bad.any():
        rows = bad.nonzero().flatten().tolist()
        raise UserError(f"{equation.name}: the initial state of trajectory {rows[0]} holds NaN or infinity")
