# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# mypy: disable-error-code="assignment,operator"
"""Incompressible flow in eight kernels an evaluation: ``u × ω`` from modes to modes, projected, and the time step.

``z_c = u_c + i ω_c`` packs a component of the velocity with that of the vorticity ``ω = ∇ × u``, so that an evaluation
takes three complex transforms, and ``(u × ω)_1 = Im(conj(z_2) z_3)`` and so on; of the three products the first two
are packed again. Axis by axis, only lines within the cut are read and written:

1. first axis: ``z`` from the coefficients of u, both halves of the spectrum, inverse transform;
2. second and last axis: inverse transforms;
3. last axis: products and forward transform;
4. second and first axis: forward transforms;
5. divergence-free part, viscosity, and the stage of the time step.

Real and imaginary parts lie in planes: states are ``(batch, 3, 2, *modes)``.
"""

# ruff: noqa: RUF005 (Triton's language has no starred tuples)

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from factformer.kernels._triton.launching import launch
from factformer.kernels.solvers.axis import columns_of, half_columns, transform
from factformer.kernels.solvers.divergence_free import finish_divergence_free
from factformer.kernels.solvers.fourier import narrow_index, to_narrow, to_wide, wide_index
from factformer.kernels.solvers.lines import Lines
from factformer.kernels.solvers.stages import Ending, stage_tables, staged_step
from factformer.numerics.spectral import Spectrum
from factformer.numerics.timestepping import Stage

SPREAD, ROWS = (32, 4), (32, 4)  # columns or rows of a program, and its warps


@triton.jit
def _spread_first(
    source,
    target,
    table,
    unit1,
    unit2,
    unit3,
    K1: tl.constexpr,
    K2: tl.constexpr,
    K3: tl.constexpr,
    S3: tl.constexpr,
    HALF: tl.constexpr,
    LINE: tl.constexpr,
):
    LIST: tl.constexpr = LINE.LIST
    WIDE_LIST: tl.constexpr = LINE.WIDE_LIST
    S1: tl.constexpr = LINE.S
    N2: tl.constexpr = 2 * K2 + 1
    MODES: tl.constexpr = (2 * K1 + 1) * N2 * (K3 + 1)
    line, column, inside = columns_of(tl.program_id(0), HALF, S3, LINE.R)  # the line is the place of k2
    component = tl.program_id(1)
    batch = tl.program_id(2).to(tl.int64)
    mirrored = column > S3 // 2
    sign = tl.where(mirrored, -1.0, 1.0)
    k3 = tl.where(mirrored, S3 - column, column)
    # of the mode that is read: -k where k is not stored
    line2 = tl.where(mirrored, (N2 - line) % N2, line)
    q2 = tl.where(line2 <= K2, line2, line2 - N2) * unit2 * sign
    q3 = k3 * unit3 * sign
    is_first, is_second, is_third = (
        (component == 0).to(tl.float32),
        (component == 1).to(tl.float32),
        (component == 2).to(tl.float32),
    )
    own = source + (batch * 3 + component) * 2 * MODES
    second = source + (batch * 3 + (component + 1) % 3) * 2 * MODES
    third = source + (batch * 3 + (component + 2) % 3) * 2 * MODES
    re = ()
    im = ()
    for j in tl.static_range(LIST):
        n = narrow_index(j, LINE)
        index = tl.where(mirrored, (S1 - n) % S1, n)
        keep = ((index <= K1) | (index >= S1 - K1)) & (k3 <= K3) & inside
        q1 = tl.where(index <= S1 // 2, index, index - S1) * unit1 * sign
        place = tl.where(index <= K1, index, index - S1 + 2 * K1 + 1)
        mode = (place * N2 + line2) * (K3 + 1) + k3
        # (k × u)_c = k_{c+1} u_{c+2} - k_{c+2} u_{c+1}
        after = is_first * q2 + is_second * q3 + is_third * q1
        before = is_first * q3 + is_second * q1 + is_third * q2
        wr = after * tl.load(third + mode, mask=keep, other=0.0) - before * tl.load(second + mode, mask=keep, other=0.0)
        wi = after * tl.load(third + MODES + mode, mask=keep, other=0.0) - before * tl.load(
            second + MODES + mode, mask=keep, other=0.0
        )
        # u + i ω = u - k × u, and conj(u + k × u) for the mirrored half
        re = re + (tl.load(own + mode, mask=keep, other=0.0) - wr,)
        im = im + (sign * (tl.load(own + MODES + mode, mask=keep, other=0.0) - wi),)
    re, im = to_wide(re, im, table, 1.0, LINE)
    plane: tl.constexpr = S1 * N2 * S3
    target += (batch * 3 + component) * 2 * plane
    for j in tl.static_range(WIDE_LIST):
        place = (wide_index(j, LINE) * N2 + line) * S3 + column
        tl.store(target + place, re[j], mask=inside)
        tl.store(target + plane + place, im[j], mask=inside)


@triton.jit
def _in_tile(j, LINE: tl.constexpr):
    """Where element ``j`` of the rows of a program lies in their tile."""
    return (tl.arange(0, LINE.WIDE_LANES)[:, None] + LINE.WIDE_LANES * j) * LINE.R + tl.arange(0, LINE.R)[None, :]


@triton.jit
def _widen_rows(field, target, table, lines, HALF: tl.constexpr, LINE: tl.constexpr):
    """The inverse transform along the last axis.

    Points are left in tiles of a few rows, the rows innermost, as a program of `_cross_rows` takes them: in the order
    of the points every store would touch a few bytes of many rows.
    """
    LIST: tl.constexpr = LINE.LIST
    WIDE_LIST: tl.constexpr = LINE.WIDE_LIST
    row = tl.program_id(0) * LINE.R + tl.arange(0, LINE.R)[None, :]
    plane = lines * LINE.S
    first = tl.program_id(1).to(tl.int64) * 2 * plane
    re = ()
    im = ()
    for j in tl.static_range(LIST):
        n = narrow_index(j, LINE)
        keep = ((n < HALF) | (n >= LINE.S - HALF)) & (row < lines)
        re = re + (tl.load(field + first + row * LINE.S + n, mask=keep, other=0.0),)
        im = im + (tl.load(field + first + plane + row * LINE.S + n, mask=keep, other=0.0),)
    re, im = to_wide(re, im, table, 1.0, LINE)
    target += first + tl.program_id(0) * LINE.R * LINE.S
    for j in tl.static_range(WIDE_LIST):
        place = _in_tile(j, LINE)
        tl.store(target + place, re[j])
        tl.store(target + plane + place, im[j])


@triton.jit
def _cross_rows(field, target, table, lines, THIRD: tl.constexpr, HALF: tl.constexpr, LINE: tl.constexpr):
    """The forward transform of the first two products as one, or of the third."""
    LIST: tl.constexpr = LINE.LIST
    WIDE_LIST: tl.constexpr = LINE.WIDE_LIST
    row = tl.program_id(0) * LINE.R + tl.arange(0, LINE.R)[None, :]
    inside = row < lines
    plane = lines * LINE.S
    field += tl.program_id(1).to(tl.int64) * 6 * plane
    re = ()
    im = ()
    tile = field + tl.program_id(0) * LINE.R * LINE.S
    for j in tl.static_range(WIDE_LIST):
        place = _in_tile(j, LINE)
        ar = tl.load(tile + place)
        ai = tl.load(tile + plane + place)
        br = tl.load(tile + 2 * plane + place)
        bi = tl.load(tile + 3 * plane + place)
        if THIRD:
            re = re + (ar * bi - ai * br,)
            im = im + (tl.zeros_like(ar),)
        else:
            cr = tl.load(tile + 4 * plane + place)
            ci = tl.load(tile + 5 * plane + place)
            re = re + (br * ci - bi * cr,)
            im = im + (cr * ai - ci * ar,)
    re, im = to_narrow(re, im, table, -1.0, LINE)
    target += (tl.program_id(1).to(tl.int64) * 4 + 2 * THIRD) * plane
    for j in tl.static_range(LIST):
        n = narrow_index(j, LINE)
        keep = ((n < HALF) | (n >= LINE.S - HALF)) & inside
        tl.store(target + row * LINE.S + n, re[j], mask=keep)
        tl.store(target + plane + row * LINE.S + n, im[j], mask=keep)


def cross_stepper(
    spectrum: Spectrum, shape: Sequence[int], viscosity: float | Tensor, stages: Sequence[Stage]
) -> Callable[[Tensor], Tensor]:
    """The step ``state -> state`` of planes ``(batch, 3, 2, *modes)`` for ``∂u/∂t = u × ω - ∇q + ν ∇²u``.

    Products are formed on ``shape`` points; the weights of the stages are single numbers. ``viscosity`` is one number,
    or one for each sample.
    """
    (size1, size2, size3), (k1, k2, k3), device = shape, spectrum.cutoff, spectrum.device
    lines1, lines2, lines3 = (Lines(size, device) for size in shape)
    unit1, unit2, unit3 = (2 * math.pi / length for length in spectrum.extent)
    scale = 1.0 / (size1 * size2 * size3)
    tables = stage_tables(stages, device)
    viscosities = torch.as_tensor(viscosity, dtype=torch.float64).reshape(-1).to(device, torch.float32)
    half = half_columns(k3, size3)
    num1, num2 = 2 * k1 + 1, 2 * k2 + 1
    modes = num1 * num2 * (k3 + 1)
    rows, row_warps = ROWS
    assert size1 * size2 % rows == 0
    row_blocks = size1 * size2 // rows
    inner = {"HALF": half, "LINE": lines3.taken(rows), "num_warps": row_warps}

    def products(argument: Tensor) -> Tensor:
        """The packed products ``(batch, 2, 2, *modes)``, columns at their places among the points."""
        batch = len(argument)
        mixed = argument.new_empty((3 * batch, 2, size1, num2, size3))
        points = argument.new_empty((3 * batch, 2, size1, size2, size3))
        columns, warps = SPREAD
        launch(
            _spread_first,
            (triton.cdiv(2 * half, columns) * num2, 3, batch),
            argument,
            mixed,
            lines1.table,
            unit1,
            unit2,
            unit3,
            K1=k1,
            K2=k2,
            K3=k3,
            S3=size3,
            HALF=half,
            LINE=lines1.taken(columns),
            num_warps=warps,
        )
        transform(mixed, points, -2, k2, lines2, half)
        fields = torch.empty_like(points)
        launch(_widen_rows, (row_blocks, 3 * batch), points, fields, lines3.table, size1 * size2, **inner)
        packed = argument.new_empty((2 * batch, 2, size1, size2, size3))
        for third in (False, True):
            launch(_cross_rows, (row_blocks, batch), fields, packed, lines3.table, size1 * size2, THIRD=third, **inner)
        mixed = mixed[: 2 * batch]
        transform(packed, mixed, -2, k2, lines2, half)
        result = argument.new_empty((2 * batch, 2, num1, num2, size3))
        transform(mixed, result, -3, k1, lines1, half)
        return result

    def step(state: Tensor) -> Tensor:
        def evaluate(argument: Tensor, ending: Ending, constants: dict[str, Any]) -> None:
            launch(
                finish_divergence_free,
                (triton.cdiv(modes, 256), len(state)),
                products(argument),
                argument,
                ending,
                unit1,
                unit2,
                unit3,
                viscosities,
                scale,
                N1=num1,
                N2=num2,
                N3=k3 + 1,
                PITCH=size3,
                OWN_VISCOSITY=int(len(viscosities) > 1),
                **constants,
                BLOCK=256,
            )

        return staged_step(state, stages, tables, evaluate)

    return step
