"""What a dataset will hold: preset, grids, numbers of trajectories and their seeds, settled before solving."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from pydantic import Field as Value

from factformer._support.limits import require_memory
from factformer.config import Config, apply_overrides, unknown_name
from factformer.data.layout import Contents
from factformer.data.splits import SPLITS
from factformer.errors import UserError
from factformer.numerics.pencils import cut_for
from factformer.pdes import PDE, Preset, Settings
from factformer.problem import Problem

MOST_TRAJECTORIES = 10**6
MOST_FRAMES = 10**6
CHECKED_AT_ONCE = 64


class PresetChanges(Config):
    """What of a preset may be changed by assignments."""

    num_frames: int = Value(default=1, ge=1, le=MOST_FRAMES)
    frame_dt: float = Value(default=1.0, gt=1e-37, lt=1e37)
    warmup: float = Value(default=0.0, ge=0, lt=1e37)
    initial: str | None = None
    downsampling: str | None = None
    num_axes: int | None = Value(default=None, ge=1, le=4)


def problem_at(equation: PDE, plan: Preset, resolution: int, parameters: Config | None = None) -> Problem:
    """The PDE's problem at ``resolution`` points, with the axes of the plan."""
    return equation.problem(equation.shape_in(plan, resolution), parameters)


def trajectory_seed(seed: int, split: str, index: int) -> int:
    """The seed of one trajectory: splits share none."""
    digest = hashlib.sha256(f"{seed}/{split}/{index}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def describe(
    equation: PDE, plan: Preset, settings: Settings, split: str, count: int, seed: int, dtype: str
) -> Contents:
    """What the file of a split will hold."""
    values = settings.to_dict()
    return Contents(
        problem=stored_problem(equation, plan, settings),
        split=split,
        num_trajectories=count,
        num_frames=plan.num_frames,
        seeds=tuple(trajectory_seed(seed, split, index) for index in range(count)),
        start_time=plan.warmup,
        provenance={
            "pde": equation.name,
            "parameters": values,
            "simulation_resolution": plan.simulation_resolution,
            "initial": plan.initial,
            "downsampling": plan.downsampling,
            "warmup": plan.warmup,
            "seed": seed,
            "dtype": dtype,
        },
        scalars={
            name: float(value)
            for name, value in values.items()
            if isinstance(value, (int, float)) and not isinstance(value, bool)
        },
    )


def stored_problem(equation: PDE, plan: Preset, settings: Settings) -> Problem:
    """The PDE's problem on the stored grid, with the parameters that differ between trajectories.

    Context and horizon shrink to what few frames allow.
    """
    problem = problem_at(equation, plan, plan.resolution, settings.shared)
    for name in problem.parameters:
        if name not in equation.parameters.model_fields:
            raise UserError(f"{equation.name}: the parameter {name!r} of its problem is none of the equation's")
    own = tuple(name for name in settings.ranges if name not in problem.parameters)
    problem = replace(problem, parameters=(*problem.parameters, *own))
    if problem.steady:
        return problem
    context = max(1, min(problem.num_context_frames, plan.num_frames - 1))
    horizon = max(1, min(problem.horizon, plan.num_frames - context))
    return replace(problem, frame_dt=plan.frame_dt, num_context_frames=context, horizon=horizon)


def chosen_preset(equation: PDE, preset: str | Preset) -> Preset:
    if isinstance(preset, Preset):
        return preset
    if not equation.presets:
        raise UserError(f"{equation.name} has no presets: give a Preset, or set presets in its class")
    if preset not in equation.presets:
        raise unknown_name("preset", preset, equation.presets)
    return equation.presets[preset]


def changed(
    equation: PDE, plan: Preset, parameters: Mapping[str, Any], settings: Sequence[str]
) -> tuple[Preset, dict[str, Any]]:
    """Preset and parameters after the assignments: a key of the one or of the other.

    ``parameters.reynolds=500`` is the same as ``reynolds=500``.
    """
    given = apply_overrides({"parameters": {}}, settings)
    own = given.pop("parameters")
    if not isinstance(own, dict):
        raise UserError(f"parameters are names with values, such as parameters.reynolds=500; got {own!r}")
    for name in own:
        if name not in equation.parameters.model_fields:
            raise unknown_name("parameter", name, equation.parameters.model_fields)
    given |= own
    of_preset, of_equation = set(PresetChanges.model_fields), set(equation.parameters.model_fields)
    for name in given:
        if name not in of_preset | of_equation:
            raise unknown_name("setting", name, of_preset | of_equation)
    changes = PresetChanges.parse({name: value for name, value in given.items() if name in of_preset})
    before, plan = plan, replace(plan, **changes.model_dump(exclude_unset=True))
    if plan.num_axes != before.num_axes:
        plan = replace(plan, proportions=None)
    if equation.steady:
        for name, only in (("num_frames", 1), ("frame_dt", before.frame_dt), ("warmup", 0)):
            if getattr(plan, name) != only:
                raise UserError(f"{equation.name} is steady: {name} has no meaning")
    if plan.downsampling is not None:
        equation.choose_downsampling(plan.downsampling)
    if abs(plan.warmup - plan.num_dropped * plan.frame_dt) > 1e-6 * plan.frame_dt:
        raise UserError(f"warmup {plan.warmup:g} must be a whole number of frame intervals of {plan.frame_dt:g}")
    return plan, {**parameters, **{name: value for name, value in given.items() if name in of_equation}}


def require_storable(equation: PDE, settings: Settings) -> None:
    if why := equation.why_not_stored(settings.shared):
        raise UserError(f"{equation.name}: such data cannot be stored: {why}")


def require_solvable(equation: PDE, plan: Preset, settings: Settings, counts: Mapping[str, int], seed: int) -> None:
    """Raise where the solver's grid is too coarse for the parameters of a trajectory, before the first is solved."""
    names, shape = tuple(settings.ranges), solved_shape(equation, plan)
    for split, count in counts.items():
        for first in range(0, count if names else 1, CHECKED_AT_ONCE):
            batch = range(first, min(first + CHECKED_AT_ONCE, count))
            values = settings.values(names, [trajectory_seed(seed, split, index) for index in batch])
            if why := equation.why_not_solved(shape, settings.of(names, values)):
                raise UserError(f"{equation.name}: {why}, as simulation_resolution")


def split_counts(
    plan: Preset, splits: Sequence[str] | None, trajectories: int | Mapping[str, int] | None
) -> dict[str, int]:
    chosen = list(plan.num_trajectories) if splits is None else list(splits)
    counts = {}
    for split in chosen:
        if split not in SPLITS:
            raise unknown_name("split", split, SPLITS)
        given = trajectories.get(split) if isinstance(trajectories, Mapping) else trajectories
        counts[split] = plan.num_trajectories.get(split, 1) if given is None else int(given)
        if not 1 <= counts[split] <= MOST_TRAJECTORIES:
            raise UserError(
                f"split {split!r} needs at least 1 trajectory and at most {MOST_TRAJECTORIES}, got {counts[split]}"
            )
    return counts


def with_resolution(
    equation: PDE, plan: Preset, resolution: int | None, simulation: int | None, domain: int = 1
) -> Preset:
    """Another stored resolution. The solver's grid stays as fine as it was, where the PDE can store less of it.

    ``domain`` processes share the grid. On axes of nodes the stored points must be some of the solver's, so its grid
    is made finer until they are.
    """
    stored = plan.resolution if resolution is None else resolution
    if min(stored, simulation or stored) < 2:
        raise UserError(f"resolution must be at least 2, got {min(stored, simulation or stored)}")
    grid = problem_at(equation, plan, stored).grid
    solver = max(plan.simulation_resolution, stored)
    if simulation is not None:
        solver = simulation
    elif type(equation).downsample is PDE.downsample:
        solver = stored
    elif any(not wraps and points == "nodes" for wraps, points in zip(grid.periodic, grid.points, strict=True)):
        solver = 1 + math.ceil((solver - 1) / (stored - 1)) * (stored - 1)
    frame = problem_at(equation, plan, solver)
    numbers = frame.grid.num_points * (frame.num_static_channels + frame.num_state_channels)
    require_memory(4 * numbers / domain, f"one frame of the solver's grid {frame.grid.shape}", "lower the resolution")
    if stored > solver:
        raise UserError(f"stored resolution {stored} is finer than the simulation's {solver}")
    plan = replace(plan, resolution=stored, simulation_resolution=solver)
    _require_downsampling(equation, plan, "cpu" if domain == 1 else "meta")
    return plan


def solved_shape(equation: PDE, plan: Preset) -> tuple[int, ...]:
    """Of the solver's grid."""
    return problem_at(equation, plan, plan.simulation_resolution).grid.shape


def require_cuttable(equation: PDE, plan: Preset, domain: int) -> None:
    """Raise where so many processes cannot share the grids of a plan."""
    if domain == 1:
        return
    if not equation.cuttable:
        raise UserError(f"{equation.name} cannot be cut over processes; leave out --domain")
    stored, parts = (
        problem_at(equation, plan, plan.resolution).grid.shape,
        cut_for(solved_shape(equation, plan), domain),
    )
    if any(size < count for size, count in zip(stored, parts, strict=True)):
        raise UserError(
            f"{domain} processes cut the solver's grid into {' x '.join(map(str, parts))} parts; {plan.resolution} "
            "stored points are too few for that: use fewer processes"
        )
    exact = all(size % count == 0 for size, count in zip(stored, parts, strict=True))
    if plan.resolution != plan.simulation_resolution and plan.downsampling == "points" and not exact:
        raise UserError(
            f"downsampling=points stores one in some points of each part: {plan.resolution} points must be a multiple "
            f"of {' and '.join(str(count) for count in parts if count > 1)}; or use downsampling=truncate"
        )


def _require_downsampling(equation: PDE, plan: Preset, device: str) -> None:
    """Find out on a blank frame, not after the first hour, whether the solver's grid holds the stored one."""
    if plan.resolution == plan.simulation_resolution:
        return
    fine, coarse = (problem_at(equation, plan, size) for size in (plan.simulation_resolution, plan.resolution))
    blank = torch.zeros(1, 1, *fine.grid.shape, fine.num_state_channels, device=device)
    try:
        equation.downsample(blank, coarse.grid.shape, plan.downsampling)
    except ValueError as error:
        sizes = f"{plan.simulation_resolution} points cannot be stored as {plan.resolution}"
        raise UserError(f"{equation.name}: {sizes}: {error}") from None
