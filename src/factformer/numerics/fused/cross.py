"""Incompressible flow in five kernels an evaluation: ``u × ω`` from modes to modes, projected, and the time step.

``z_c = u_c + i ω_c`` packs a component of the velocity with that of the vorticity ``ω = ∇ × u``, so that an evaluation
takes three complex transforms, and ``(u × ω)_1 = Im(conj(z_2) z_3)`` and so on; of the three products the first two
are packed again. Axis by axis, only lines within the cut are read and written:

1. first axis: ``z`` from the coefficients of u, both halves of the spectrum, inverse transform;
2. second axis: inverse transform;
3. last axis: inverse transform, products, forward transform; the fields never reach memory;
4. second axis: forward transform;
5. first axis: forward transform, divergence-free part, viscosity, and the stage of the time step.

Real and imaginary parts lie in planes: states are ``(batch, 3, 2, *modes)``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from factformer.numerics.fused.fourier import to_narrow, to_wide, wide_offset
from factformer.numerics.fused.lines import Lines
from factformer.numerics.fused.stages import finish_stage, stage_tables
from factformer.numerics.spectral import Spectrum
from factformer.numerics.timestepping import Stage

SPREAD, MIDDLE, ROWS, GATHER = (8, 4), (32, 8), (8, 4), (8, 4)  # columns (rows) of a program and its warps


@triton.jit
def _wavenumber(n, K: tl.constexpr, S: tl.constexpr, unit):
    """Of the index ``n`` of a line; and its place among the modes that are kept."""
    return tl.where(n <= S // 2, n, n - S) * unit, tl.where(n <= K, n, n - S + 2 * K + 1)


@triton.jit
def _spread_first(
    source, target, table, unit1, unit2, unit3,
    K1: tl.constexpr, K2: tl.constexpr, K3: tl.constexpr, S1: tl.constexpr, S2: tl.constexpr, S3: tl.constexpr,
    HALF: tl.constexpr, R: tl.constexpr,
    LIST: tl.constexpr, LANES: tl.constexpr, WIDE_LIST: tl.constexpr, WIDE_LANES: tl.constexpr,
):  # fmt: skip
    N2: tl.constexpr = 2 * K2 + 1
    MODES: tl.constexpr = (2 * K1 + 1) * N2 * (K3 + 1)
    blocks: tl.constexpr = 2 * HALF // R
    block = tl.program_id(0) % blocks
    line = tl.program_id(0) // blocks  # the place of k2
    component = tl.program_id(1)
    batch = tl.program_id(2).to(tl.int64)
    first = block * R + tl.where(block * R >= HALF, S3 - 2 * HALF, 0)
    column = first + tl.arange(0, R)[None, :]
    mirrored = column > S3 // 2
    sign = tl.where(mirrored, -1.0, 1.0)
    k3 = tl.where(mirrored, S3 - column, column)
    # of the mode that is read: -k where k is not stored
    line2 = tl.where(mirrored, (N2 - line) % N2, line)
    q2 = tl.where(line2 <= K2, line2, line2 - N2) * unit2
    q3 = k3 * unit3
    own = source + (batch * 3 + component) * 2 * MODES
    second = source + (batch * 3 + (component + 1) % 3) * 2 * MODES
    third = source + (batch * 3 + (component + 2) % 3) * 2 * MODES
    re = ()
    im = ()
    for j in tl.static_range(LIST):
        n = tl.arange(0, LANES)[:, None] + LANES * j
        index = tl.where(mirrored, (S1 - n) % S1, n)
        keep = ((index <= K1) | (index >= S1 - K1)) & (k3 <= K3)
        q1, place = _wavenumber(index, K1, S1, unit1)
        mode = (place * N2 + line2) * (K3 + 1) + k3
        # (k × u)_c = k_{c+1} u_{c+2} - k_{c+2} u_{c+1}
        after = tl.where(component == 0, q2 + 0 * q1, tl.where(component == 1, q3 + 0 * q1, q1 + 0 * q2))
        before = tl.where(component == 0, q3 + 0 * q1, tl.where(component == 1, q1 + 0 * q2, q2 + 0 * q1))
        after, before = after * sign, before * sign
        wr = after * tl.load(third + mode, mask=keep, other=0.0) - before * tl.load(second + mode, mask=keep, other=0.0)
        wi = after * tl.load(third + MODES + mode, mask=keep, other=0.0) - before * tl.load(
            second + MODES + mode, mask=keep, other=0.0
        )
        # u + i ω = u - k × u, and conj(u + k × u) for the mirrored half
        re = re + (tl.load(own + mode, mask=keep, other=0.0) - wr,)
        im = im + (sign * (tl.load(own + MODES + mode, mask=keep, other=0.0) - wi),)
    re, im = to_wide(re, im, table, 1.0, S1, R)
    plane: tl.constexpr = S1 * N2 * S3
    target += (batch * 3 + component) * 2 * plane
    for j in tl.static_range(WIDE_LIST):
        n = tl.arange(0, WIDE_LANES)[:, None] + wide_offset(j, S1)
        place = (n * N2 + line) * S3 + column
        tl.store(target + place, re[j])
        tl.store(target + plane + place, im[j])


@triton.jit
def _widen_second(
    source, target, table,
    K2: tl.constexpr, S1: tl.constexpr, S2: tl.constexpr, S3: tl.constexpr, HALF: tl.constexpr, R: tl.constexpr,
    LIST: tl.constexpr, LANES: tl.constexpr, WIDE_LIST: tl.constexpr, WIDE_LANES: tl.constexpr,
):  # fmt: skip
    N2: tl.constexpr = 2 * K2 + 1
    blocks: tl.constexpr = (2 * HALF + R - 1) // R
    column = tl.program_id(0) % blocks * R + tl.arange(0, R)[None, :]
    inside = column < 2 * HALF
    column += tl.where(column >= HALF, S3 - 2 * HALF, 0)
    line = tl.program_id(0) // blocks
    field = tl.program_id(1).to(tl.int64)
    source += field * 2 * S1 * N2 * S3 + line * N2 * S3
    re = ()
    im = ()
    for j in tl.static_range(LIST):
        n = tl.arange(0, LANES)[:, None] + LANES * j
        keep = ((n <= K2) | (n >= S2 - K2)) & inside
        place = tl.where(n <= K2, n, n - S2 + N2) * S3 + column
        re = re + (tl.load(source + place, mask=keep, other=0.0),)
        im = im + (tl.load(source + S1 * N2 * S3 + place, mask=keep, other=0.0),)
    re, im = to_wide(re, im, table, 1.0, S2, R)
    target += field * 2 * S1 * S2 * S3 + line * S2 * S3
    for j in tl.static_range(WIDE_LIST):
        place = (tl.arange(0, WIDE_LANES)[:, None] + wide_offset(j, S2)) * S3 + column
        tl.store(target + place, re[j], mask=inside)
        tl.store(target + S1 * S2 * S3 + place, im[j], mask=inside)


@triton.jit
def _row(field, table, row, inside, plane, S3: tl.constexpr, HALF: tl.constexpr, R: tl.constexpr,
         LIST: tl.constexpr, LANES: tl.constexpr):  # fmt: skip
    re = ()
    im = ()
    for j in tl.static_range(LIST):
        n = tl.arange(0, LANES)[:, None] + LANES * j
        keep = ((n < HALF) | (n >= S3 - HALF)) & inside
        re = re + (tl.load(field + row * S3 + n, mask=keep, other=0.0),)
        im = im + (tl.load(field + plane + row * S3 + n, mask=keep, other=0.0),)
    return to_wide(re, im, table, 1.0, S3, R)


@triton.jit
def _cross_rows(
    field, table, lines,
    S3: tl.constexpr, HALF: tl.constexpr, R: tl.constexpr,
    LIST: tl.constexpr, LANES: tl.constexpr, WIDE_LIST: tl.constexpr,
):  # fmt: skip
    """In place: fields 0 and 1 of the three become the packed products and the third product."""
    row = tl.program_id(0) * R + tl.arange(0, R)[None, :]
    inside = row < lines
    plane = lines * S3
    field += tl.program_id(1).to(tl.int64) * 6 * plane
    ar, ai = _row(field, table, row, inside, plane, S3, HALF, R, LIST, LANES)
    br, bi = _row(field + 2 * plane, table, row, inside, plane, S3, HALF, R, LIST, LANES)
    cr, ci = _row(field + 4 * plane, table, row, inside, plane, S3, HALF, R, LIST, LANES)
    first = ()
    second = ()
    third = ()
    zero = ()
    for j in tl.static_range(WIDE_LIST):
        first = first + (br[j] * ci[j] - bi[j] * cr[j],)
        second = second + (cr[j] * ai[j] - ci[j] * ar[j],)
        third = third + (ar[j] * bi[j] - ai[j] * br[j],)
        zero = zero + (tl.zeros_like(ar[j]),)
    re, im = to_narrow(first, second, table, -1.0, S3, R)
    for j in tl.static_range(LIST):
        n = tl.arange(0, LANES)[:, None] + LANES * j
        keep = ((n < HALF) | (n >= S3 - HALF)) & inside
        tl.store(field + row * S3 + n, re[j], mask=keep)
        tl.store(field + plane + row * S3 + n, im[j], mask=keep)
    re, im = to_narrow(third, zero, table, -1.0, S3, R)
    for j in tl.static_range(LIST):
        n = tl.arange(0, LANES)[:, None] + LANES * j
        keep = (n < HALF) & inside
        tl.store(field + 2 * plane + row * S3 + n, re[j], mask=keep)
        tl.store(field + 3 * plane + row * S3 + n, im[j], mask=keep)


@triton.jit
def _narrow_second(
    source, target, table,
    K2: tl.constexpr, S1: tl.constexpr, S2: tl.constexpr, S3: tl.constexpr, HALF: tl.constexpr, R: tl.constexpr,
    LIST: tl.constexpr, LANES: tl.constexpr, WIDE_LIST: tl.constexpr, WIDE_LANES: tl.constexpr,
):  # fmt: skip
    N2: tl.constexpr = 2 * K2 + 1
    blocks: tl.constexpr = (2 * HALF + R - 1) // R
    column = tl.program_id(0) % blocks * R + tl.arange(0, R)[None, :]
    # the third product is real: its first half is all there is
    field = tl.program_id(1)
    inside = column < tl.where(field == 0, 2 * HALF, HALF)
    column += tl.where(column >= HALF, S3 - 2 * HALF, 0)
    line = tl.program_id(0) // blocks
    batch = tl.program_id(2).to(tl.int64)
    source += (batch * 3 + field) * 2 * S1 * S2 * S3 + line * S2 * S3
    re = ()
    im = ()
    for j in tl.static_range(WIDE_LIST):
        place = (tl.arange(0, WIDE_LANES)[:, None] + wide_offset(j, S2)) * S3 + column
        re = re + (tl.load(source + place, mask=inside, other=0.0),)
        im = im + (tl.load(source + S1 * S2 * S3 + place, mask=inside, other=0.0),)
    re, im = to_narrow(re, im, table, -1.0, S2, R)
    target += (batch * 3 + field) * 2 * S1 * N2 * S3 + line * N2 * S3
    for j in tl.static_range(LIST):
        n = tl.arange(0, LANES)[:, None] + LANES * j
        keep = ((n <= K2) | (n >= S2 - K2)) & inside
        place = tl.where(n <= K2, n, n - S2 + N2) * S3 + column
        tl.store(target + place, re[j], mask=keep)
        tl.store(target + S1 * N2 * S3 + place, im[j], mask=keep)


@triton.jit
def _column(field, table, place, plane, inside, sign, N2: tl.constexpr, S1: tl.constexpr, S3: tl.constexpr,
            R: tl.constexpr, WIDE_LIST: tl.constexpr, WIDE_LANES: tl.constexpr):  # fmt: skip
    re = ()
    im = ()
    for j in tl.static_range(WIDE_LIST):
        n = tl.arange(0, WIDE_LANES)[:, None] + wide_offset(j, S1)
        re = re + (tl.load(field + n * (N2 * S3) + place, mask=inside, other=0.0),)
        im = im + (sign * tl.load(field + plane + n * (N2 * S3) + place, mask=inside, other=0.0),)
    return to_narrow(re, im, table, -1.0, S1, R)


@triton.jit
def _gather_first(
    field, argument, table, base, coefficients, rates, target, old1, old2, old3,
    unit1, unit2, unit3, viscosity, scale,
    K1: tl.constexpr, K2: tl.constexpr, K3: tl.constexpr, S1: tl.constexpr, S2: tl.constexpr, S3: tl.constexpr,
    R: tl.constexpr, LIST: tl.constexpr, LANES: tl.constexpr, WIDE_LIST: tl.constexpr, WIDE_LANES: tl.constexpr,
    NUM_OLD: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    N2: tl.constexpr = 2 * K2 + 1
    MODES: tl.constexpr = (2 * K1 + 1) * N2 * (K3 + 1)
    blocks: tl.constexpr = (K3 + R) // R
    line = tl.program_id(0) // blocks
    k3 = tl.program_id(0) % blocks * R + tl.arange(0, R)[None, :]
    inside = k3 <= K3
    batch = tl.program_id(1).to(tl.int64)
    plane: tl.constexpr = S1 * N2 * S3
    field += batch * 6 * plane
    own = line * S3 + k3
    mirrored = (N2 - line) % N2 * S3 + (S3 - k3) % S3
    ar, ai = _column(field, table, own, plane, inside, 1.0, N2, S1, S3, R, WIDE_LIST, WIDE_LANES)
    # conjugate, so that its transform is conj(Q_{-k}) at the index k
    br, bi = _column(field, table, mirrored, plane, inside, -1.0, N2, S1, S3, R, WIDE_LIST, WIDE_LANES)
    cr, ci = _column(field + 2 * plane, table, own, plane, inside, 1.0, N2, S1, S3, R, WIDE_LIST, WIDE_LANES)
    q2 = tl.where(line <= K2, line, line - N2) * unit2
    q3 = k3 * unit3
    half = 0.5 * scale
    for j in tl.static_range(LIST):
        n = tl.arange(0, LANES)[:, None] + LANES * j
        keep = ((n <= K1) | (n >= S1 - K1)) & inside
        q1, where = _wavenumber(n, K1, S1, unit1)
        mode = (where * N2 + line) * (K3 + 1) + k3
        squared = q1 * q1 + q2 * q2 + q3 * q3
        inverse = tl.where(squared > 0, 1.0 / squared, 0.0)
        # the products: (a + b)/2, (a - b)/(2i), c
        xr, xi = half * (ar[j] + br[j]), half * (ai[j] + bi[j])
        yr, yi = half * (ai[j] - bi[j]), half * (br[j] - ar[j])
        zr, zi = scale * cr[j], scale * ci[j]
        pr = (q1 * xr + q2 * yr + q3 * zr) * inverse
        pi = (q1 * xi + q2 * yi + q3 * zi) * inverse
        damping = viscosity * squared
        for component in tl.static_range(3):
            place = (batch * 3 + component) * 2 * MODES + mode
            if component == 0:
                rr, ri = xr - q1 * pr, xi - q1 * pi
            elif component == 1:
                rr, ri = yr - q2 * pr, yi - q2 * pi
            else:
                rr, ri = zr - q3 * pr, zi - q3 * pi
            rr -= damping * tl.load(argument + place, mask=keep, other=0.0)
            ri -= damping * tl.load(argument + MODES + place, mask=keep, other=0.0)
            finish_stage(rr, base, coefficients, rates, target, old1, old2, old3, place, mode, keep,
                         0, NUM_OLD, STORE)
            finish_stage(ri, base, coefficients, rates, target, old1, old2, old3, place + MODES, mode, keep,
                         0, NUM_OLD, STORE)


def cross_stepper(
    spectrum: Spectrum, shape: Sequence[int], viscosity: float, stages: Sequence[Stage]
) -> Callable[[Tensor], Tensor]:
    """The step ``state -> state`` of planes ``(batch, 3, 2, *modes)`` for ``∂u/∂t = u × ω - ∇q + ν ∇²u``.

    Products are formed on ``shape`` points; the weights of the stages are single numbers.
    """
    (size1, size2, size3), (k1, k2, k3), device = shape, spectrum.cutoff, spectrum.device
    lines1, lines2, lines3 = (Lines(size, device) for size in shape)
    unit1, unit2, unit3 = (2 * math.pi / length for length in spectrum.extent)
    scale = 1.0 / (size1 * size2 * size3)
    tables = stage_tables(stages, device)
    half = math.ceil((k3 + 1) / SPREAD[0]) * SPREAD[0]
    num2 = 2 * k2 + 1
    sizes = {"S1": size1, "S2": size2, "S3": size3}
    cuts = {"K1": k1, "K2": k2, "K3": k3}

    def rate(argument: Tensor, mixed: Tensor, points: Tensor) -> None:
        """Leaves the packed products, transformed along all axes but the first, in ``mixed``."""
        batch = len(argument)
        columns, warps = SPREAD
        _spread_first[(2 * half // columns * num2, 3, batch)](
            argument, mixed, lines1.table, unit1, unit2, unit3, **cuts, **sizes, HALF=half, R=columns,
            **lines1.both, num_warps=warps,
        )
        columns, warps = MIDDLE
        blocks = triton.cdiv(2 * half, columns)
        middle = {"K2": k2, **sizes, "HALF": half, "R": columns, **lines2.both, "num_warps": warps}
        _widen_second[(blocks * size1, 3 * batch)](mixed, points, lines2.table, **middle)
        rows, warps = ROWS
        _cross_rows[(triton.cdiv(size1 * size2, rows), batch)](
            points, lines3.table, size1 * size2, S3=size3, HALF=half, R=rows, **lines3.inner, num_warps=warps
        )
        _narrow_second[(blocks * size1, 2, batch)](points, mixed, lines2.table, **middle)

    def step(state: Tensor) -> Tensor:
        batch = len(state)
        mixed = state.new_empty((batch, 3, 2, size1, num2, size3))
        points = state.new_empty((batch, 3, 2, size1, size2, size3))
        arguments, rates = [state], [torch.empty_like(state) for _ in stages[:-1]]
        for number, (stage, table) in enumerate(zip(stages, tables, strict=True)):
            last = number == len(stages) - 1
            rate(arguments[-1], mixed, points)
            target = torch.empty_like(state)
            old = [rates[index] for index, _ in stage.old]
            columns, warps = GATHER
            _gather_first[(triton.cdiv(k3 + 1, columns) * num2, batch)](
                mixed, arguments[-1], lines1.table, arguments[stage.base], table, state if last else rates[number],
                target, *old, *[state] * (3 - len(old)), unit1, unit2, unit3, viscosity, scale, **cuts, **sizes,
                R=columns, **lines1.both, NUM_OLD=len(old), STORE=not last, num_warps=warps,
            )
            arguments.append(target)
        return arguments[-1]

    return step
