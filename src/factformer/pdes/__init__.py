"""The equations, one file each, and `simulate`, which solves any of them and those of a user.

A new one is a subclass of `PDE`: docs/how-to/add-a-pde.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from operator import index
from typing import Any, get_args, get_origin

import numpy as np
import torch
from torch import Tensor

from factformer import catalog
from factformer.arrays import describe_part
from factformer.batch import Batch
from factformer.config import Config
from factformer.errors import BlewUp, UserError
from factformer.pdes._common.base import PDE as PDE
from factformer.pdes._common.base import Frames as Frames
from factformer.pdes._common.base import State as State
from factformer.pdes._common.base import Symmetries as Symmetries
from factformer.pdes._common.presets import Preset as Preset
from factformer.pdes._common.presets import Task as Task
from factformer.pdes._common.ranges import Settings as Settings
from factformer.pdes._common.ranges import require_varying
from factformer.pdes._common.semilinear import Modes as Modes
from factformer.pdes._common.semilinear import Semilinear as Semilinear
from factformer.pdes._common.solving import solve as solve
from factformer.pdes._common.symmetry import BoxSymmetry as BoxSymmetry
from factformer.problem import Field

__all__ = [
    "PDE",
    "BoxSymmetry",
    "Frames",
    "Modes",
    "Preset",
    "Semilinear",
    "Settings",
    "State",
    "Symmetries",
    "Task",
    "find_pde",
    "simulate",
    "solve",
]


def find_pde(name: str) -> PDE:
    """The PDE of the catalog with this name; an unknown one lists the choices."""
    return as_pde(catalog.lookup("pdes", name))


def as_pde(pde: str | PDE) -> PDE:
    """The PDE itself, or the one of this name."""
    if isinstance(pde, str):
        return find_pde(pde)
    if not isinstance(pde, PDE):
        hint = "; make one with ()" if isinstance(pde, type) else ""
        raise UserError(f"a PDE is a name or an object of a subclass of PDE, got {pde!r}{hint}")
    return pde


def simulate(
    pde: str | PDE,
    initial: Any,
    num_frames: int | None = None,
    frame_dt: float | None = None,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    **parameters: Any,
) -> Tensor:
    """Solve a PDE from given initial states ``(batch, *grid, channel)``; ``(batch, frame, *grid, channel)``.

    ``pde`` is a name of the catalog or a `PDE` of one's own, and ``parameters`` are its own; an unknown one names the
    closest. Those that it calls ``varying`` are a number, or one for each trajectory; all trajectories share the time
    step. Where the problem has static fields, forcing or a mask, ``static=``, ``forcing=`` and ``mask=`` give them.
    Frame 0 is the initial state and frame j the solution at ``j · frame_dt``; ``num_frames`` counts both. Defaults: the
    context and horizon of the problem, its frame interval, and the dtype and device of ``initial``. A steady problem
    maps the given coefficient to its solution, ``(batch, 1, *grid, channel)``.
    """
    equation = as_pde(pde)
    name = equation.name
    if device is not None:
        require_device(device)
    if np.ma.is_masked(initial):
        raise UserError(f"{name}: the initial state is masked in places; fill these or leave the trajectories out")
    try:
        state = torch.as_tensor(np.ascontiguousarray(initial) if isinstance(initial, np.ndarray) else initial)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"{name}: the initial state is no array of numbers: {error}") from None
    if state.is_complex():
        raise UserError(f"{name}: the initial state holds complex numbers, need real ones")
    if dtype is None:
        dtype = state.dtype if state.dtype in (torch.float32, torch.float64) else torch.float32
    if dtype not in (torch.float32, torch.float64):
        raise UserError(f"simulate works in float32 and float64, got dtype {dtype}")
    state = state.to(device=device, dtype=dtype)
    _check_initial(equation, state)
    problem = equation.problem(tuple(state.shape[1:-1]))  # its task; the box may be another one
    if num_frames is None:
        num_frames = problem.num_context_frames + problem.horizon
    try:
        num_frames, frame_dt = index(num_frames), float(problem.frame_dt if frame_dt is None else frame_dt)
    except (TypeError, ValueError):
        got = f"{num_frames!r} and {frame_dt!r}"
        raise UserError(f"num_frames must be a whole number and frame_dt a number, got {got}") from None
    if num_frames < 1 or not 0 < frame_dt < math.inf:
        raise UserError(f"num_frames must be ≥ 1 and frame_dt > 0 and finite, got {num_frames} and {frame_dt}")
    problem.require_frames(num_frames, "num_frames is")
    known = _known(equation, parameters, state, num_frames)
    state = _finite(equation, state, None if known is None else known.mask)
    values = _checked_parameters(equation, parameters, len(state))
    result: Tensor | None = None
    for number, frame in enumerate(solve(equation, state, num_frames, frame_dt, values, known)):
        if result is None:
            result = frame.new_empty((len(state), num_frames, *frame.shape[1:]))
        result[:, number] = frame
    assert result is not None
    check_finite(name, result)
    return result


def _checked_parameters(equation: PDE, given: dict[str, Any], count: int) -> Config:
    """The parameters, of which varying ones may be one for each of ``count`` trajectories: tensors ``(batch,)``."""
    each: dict[str, list[Any]] = {}
    common: dict[str, Any] = {}
    for name, value in given.items():
        own = not _holds_several(equation, name)
        if isinstance(value, (Tensor, np.ndarray, np.generic)):
            value, own = value.tolist(), True
        if isinstance(value, (list, tuple)) and own:
            require_varying(equation, name)
        else:
            common[name] = value
            continue
        if any(isinstance(one, (list, tuple)) or getattr(one, "ndim", 0) for one in value):
            raise UserError(f"{equation.name}: {name} must be one number, or {count} in a row: one per trajectory")
        if len(value) != count:
            raise UserError(f"{equation.name}: {name} has {len(value)} values for {count} trajectories")
        each[name] = list(value)
    if not each:
        return equation.parameters.parse(common)
    for values in set(zip(*each.values(), strict=True)):
        checked = equation.parameters.parse({**common, **dict(zip(each, values, strict=True))})
    varied = {name: torch.tensor(values, dtype=torch.float64) for name, values in each.items()}
    return checked.model_copy(update=varied)


def _holds_several(equation: PDE, name: str) -> bool:
    """Whether a list is one value of this parameter; an unknown name is left to the parser."""
    field = equation.parameters.model_fields.get(name)
    if field is None:
        return True
    kinds = (field.annotation, *get_args(field.annotation))
    return any((get_origin(kind) or kind) in (list, tuple, Sequence) for kind in kinds)


def _known(equation: PDE, given: dict[str, Any], state: Tensor, num_frames: int) -> Batch | None:
    """What the equation is given beside its start, taken out of the arguments; none where it needs nothing."""
    for name in ("static", "forcing", "mask"):
        if name in given and name not in equation.conditions and name not in equation.parameters.model_fields:
            raise UserError(f"{equation.name} has no {name}; leave it out")
    if not equation.conditions:
        return None
    problem = replace(
        equation.problem(tuple(state.shape[1:-1])), state=(Field("start", state.shape[-1]),), num_context_frames=1
    )
    taken = {name: given.pop(name) for name in equation.conditions if name in given}
    for name in equation.conditions:
        if name not in taken:
            raise UserError(f"{equation.name} needs {describe_part(problem, name)}; give {name}=")
    batch = Batch.of(problem, state.unsqueeze(1), **taken).to(state.device, state.dtype)
    batch.require(problem, num_frames - 1)
    return batch._replace(context=None)


def require_device(device: torch.device | str) -> None:
    """Raise in one line when the device is not there."""
    try:
        wanted = torch.device(device)
    except RuntimeError:
        wanted = None
    if wanted is None or wanted.type == "meta":
        raise UserError(f"unknown device {str(device)!r}: use cpu, cuda, cuda:<number> or another one of PyTorch's")
    if wanted.type not in ("cpu", "cuda") and not _has_accelerator(wanted):
        raise UserError(f"device {str(device)!r} asked for, but there is none here; use cpu (--device cpu)")
    if wanted.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"device {str(device)!r} asked for, but there is no GPU here; use cpu (--device cpu)")
    if wanted.type == "cuda" and (wanted.index or 0) >= torch.cuda.device_count():
        raise UserError(f"device {str(device)!r} asked for, but there are {torch.cuda.device_count()} GPUs here")


def _has_accelerator(device: torch.device) -> bool:
    """Whether an accelerator of another kind than CUDA is there, such as ``mps`` or ``xpu``."""
    try:
        return bool(torch.get_device_module(device).is_available())
    except (RuntimeError, AttributeError):  # this build of PyTorch knows the name and no more
        return False


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
    raise BlewUp(
        f"{pde}: the solution blew up (NaN) from frame {first} on in trajectory {names} of "
        f"{len(frames)}; use a smaller dt or check the initial state"
    )


def _check_initial(equation: PDE, state: Tensor) -> None:
    num_axes = state.ndim - 2 if state.ndim - 2 in equation.dimensions else equation.dimensions[0]
    channels = dict.fromkeys([equation.initial_channels(num_axes), equation.restart_channels(num_axes)])
    if state.ndim - 2 != num_axes or state.shape[-1] not in channels or min(state.shape[1:-1], default=0) < 2:
        shape = "(batch, " + ", ".join(["size"] * num_axes) + f", {' or '.join(map(str, channels))})"
        raise UserError(f"{equation.name}: the initial state has shape {tuple(state.shape)}, need {shape}")
    if not len(state):
        raise UserError(f"{equation.name}: the batch of initial states is empty")


def _finite(equation: PDE, state: Tensor, mask: Tensor | None) -> Tensor:
    """The initial state, which may hold anything outside the domain: numbers that are none become 0 there."""
    bad = ~torch.isfinite(state)
    if not bad.any():
        return state
    if mask is not None:
        outside = ~mask.unsqueeze(-1)
        state, bad = state.masked_fill(bad & outside, 0.0), bad & ~outside
    rows = bad.flatten(1).any(1).nonzero().flatten().tolist()
    if rows:
        raise UserError(f"{equation.name}: the initial state of trajectory {rows[0]} holds NaN or infinity")
    return state
