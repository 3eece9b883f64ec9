# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# mypy: disable-error-code="assignment,operator"
"""What ends an evaluation of the nonlinear term: its place in a Runge-Kutta step, for kernels and their launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from factformer.numerics.timestepping import Stage


class Ending(NamedTuple):
    """What `finish_stage` reads and writes; of the last three as many as the stage has old rates."""

    base: Tensor
    coefficients: Tensor
    rates: Tensor
    target: Tensor
    first: Tensor
    second: Tensor
    third: Tensor


@triton.jit
def finish_stage(
    rate, ending, coefficients, place, mode, keep, MODES: tl.constexpr, NUM_OLD: tl.constexpr, STORE: tl.constexpr
):
    """Store ``rate`` and ``carry · base + new · rate + Σ old_j · rates_j`` of one part (real or imaginary).

    ``coefficients`` are those of `stage_tables` for the sample; MODES is 0 where they are the same for every mode.
    """
    where = mode * (1 if MODES > 0 else 0)
    step: tl.constexpr = MODES if MODES > 0 else 1
    total = tl.load(coefficients + where, mask=keep, other=0.0) * tl.load(ending.base + place, mask=keep, other=0.0)
    total += tl.load(coefficients + step + where, mask=keep, other=0.0) * rate
    if NUM_OLD > 0:
        total += tl.load(coefficients + 2 * step + where, mask=keep, other=0.0) * tl.load(
            ending.first + place, mask=keep, other=0.0
        )
    if NUM_OLD > 1:
        total += tl.load(coefficients + 3 * step + where, mask=keep, other=0.0) * tl.load(
            ending.second + place, mask=keep, other=0.0
        )
    if NUM_OLD > 2:
        total += tl.load(coefficients + 4 * step + where, mask=keep, other=0.0) * tl.load(
            ending.third + place, mask=keep, other=0.0
        )
    if STORE:
        tl.store(ending.rates + place, rate, mask=keep)
    tl.store(ending.target + place, total, mask=keep)


def stage_tables(stages: Sequence[Stage], device: torch.device, num_axes: int = 0) -> list[Tensor]:
    """The coefficients (carry, new, old…) of every stage as one float32 array each: ``(samples, number, modes or 1)``.

    ``num_axes`` is how many axes the modes have. Weights with one more are of each sample; otherwise there is one.
    """
    tables = []
    for stage in stages:
        weights = torch.stack([stage.carry, stage.new, *(weight for _, weight in stage.old)])
        samples = weights.shape[1] if num_axes and weights.ndim > 1 + num_axes else 1
        table = weights.reshape(len(weights), samples, -1).transpose(0, 1)
        tables.append(table.to(device, torch.float32).contiguous())
    return tables


def staged_step(
    state: Tensor,
    stages: Sequence[Stage],
    tables: Sequence[Tensor],
    evaluate: Callable[[Tensor, Ending, dict[str, Any]], None],
) -> Tensor:
    """The step from ``state``; ``evaluate(argument, ending, constants)`` ends a stage by `finish_stage`."""
    arguments, rates = [state], [torch.empty_like(state) for _ in stages[:-1]]
    for number, (stage, table) in enumerate(zip(stages, tables, strict=True)):
        last = number == len(stages) - 1
        target = torch.empty_like(state)
        old = [rates[index] for index, _ in stage.old]
        old += [state] * (3 - len(old))
        ending = Ending(arguments[stage.base], table, state if last else rates[number], target, *old)
        evaluate(arguments[-1], ending, {"NUM_OLD": len(stage.old), "STORE": not last})
        arguments.append(target)
    return arguments[-1]
