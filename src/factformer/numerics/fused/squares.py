"""Two-dimensional flow in three kernels an evaluation: the square of a complex field, from modes to modes.

A real field's coefficients ``f̂_k`` stand for two real fields ``u_1, u_2`` with symbols ``s_1, s_2``; packed as
``z = u_1 + i u_2`` they take one complex transform, and ``z² = u_1² - u_2² + 2i u_1 u_2`` is transformed back as one:

    N_k = α_k Q_k + β_k conj(Q_{-k}) + c_k,      Q = coefficients of z²

1. columns: coefficients × symbols, both halves of the spectrum, inverse transform along the first axis;
2. rows: inverse transform along the last axis, square, forward transform; the fields never reach memory;
3. columns: forward transform along the first axis, N, and the stage of the time step.

Only modes within the cut are read and written. Real and imaginary parts lie in planes: ``(batch, 2, *modes)``.
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

SPREAD, SQUARE, GATHER = (8, 8), (2, 4), (8, 16)  # columns (rows) of a program and its warps


@triton.jit
def _spread_columns(
    source, target, symbols, table,
    K1: tl.constexpr, K2: tl.constexpr, S1: tl.constexpr, S2: tl.constexpr, HALF: tl.constexpr, R: tl.constexpr,
    LIST: tl.constexpr, LANES: tl.constexpr, WIDE_LIST: tl.constexpr, WIDE_LANES: tl.constexpr,
):  # fmt: skip
    MODES: tl.constexpr = (2 * K1 + 1) * (K2 + 1)
    block = tl.program_id(0)
    batch = tl.program_id(1).to(tl.int64)
    first = block * R + tl.where(block * R >= HALF, S2 - 2 * HALF, 0)
    column = first + tl.arange(0, R)[None, :]
    mirrored = column > S2 // 2
    k2 = tl.where(mirrored, S2 - column, column)
    side = tl.where(mirrored, 2 * MODES, 0)
    sign = tl.where(mirrored, -1.0, 1.0)
    source += batch * 2 * MODES
    re = ()
    im = ()
    for j in tl.static_range(LIST):
        n = tl.arange(0, LANES)[:, None] + LANES * j
        own = tl.where(mirrored, (S1 - n) % S1, n)
        keep = ((own <= K1) | (own >= S1 - K1)) & (k2 <= K2)
        mode = tl.where(own <= K1, own, own - S1 + 2 * K1 + 1) * (K2 + 1) + k2
        fr = tl.load(source + mode, mask=keep, other=0.0)
        fi = tl.load(source + MODES + mode, mask=keep, other=0.0)
        sr = tl.load(symbols + side + mode, mask=keep, other=0.0)
        si = tl.load(symbols + side + MODES + mode, mask=keep, other=0.0)
        re = re + (fr * sr - fi * si,)
        im = im + (sign * (fr * si + fi * sr),)
    re, im = to_wide(re, im, table, 1.0, S1, R)
    target += batch * 2 * S1 * S2
    for j in tl.static_range(WIDE_LIST):
        place = (tl.arange(0, WIDE_LANES)[:, None] + wide_offset(j, S1)) * S2 + column
        tl.store(target + place, re[j])
        tl.store(target + S1 * S2 + place, im[j])


@triton.jit
def _square_rows(
    field, table,
    S1: tl.constexpr, S2: tl.constexpr, HALF: tl.constexpr, R: tl.constexpr,
    LIST: tl.constexpr, LANES: tl.constexpr, WIDE_LIST: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * R + tl.arange(0, R)[None, :]
    field += tl.program_id(1).to(tl.int64) * 2 * S1 * S2
    lane = tl.arange(0, LANES)[:, None]
    re = ()
    im = ()
    for j in tl.static_range(LIST):
        n = lane + LANES * j
        keep = ((n < HALF) | (n >= S2 - HALF)) & (row < S1)
        re = re + (tl.load(field + row * S2 + n, mask=keep, other=0.0),)
        im = im + (tl.load(field + S1 * S2 + row * S2 + n, mask=keep, other=0.0),)
    re, im = to_wide(re, im, table, 1.0, S2, R)
    new_re = ()
    new_im = ()
    for j in tl.static_range(WIDE_LIST):
        new_re = new_re + (re[j] * re[j] - im[j] * im[j],)
        new_im = new_im + (2 * re[j] * im[j],)
    re, im = to_narrow(new_re, new_im, table, -1.0, S2, R)
    for j in tl.static_range(LIST):
        n = lane + LANES * j
        keep = ((n < HALF) | (n >= S2 - HALF)) & (row < S1)
        tl.store(field + row * S2 + n, re[j], mask=keep)
        tl.store(field + S1 * S2 + row * S2 + n, im[j], mask=keep)


@triton.jit
def _gather_columns(
    field, symbols, table, base, coefficients, rates, target, old1, old2, old3,
    K1: tl.constexpr, K2: tl.constexpr, S1: tl.constexpr, S2: tl.constexpr, R: tl.constexpr,
    LIST: tl.constexpr, LANES: tl.constexpr, WIDE_LIST: tl.constexpr, WIDE_LANES: tl.constexpr,
    NUM_OLD: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    MODES: tl.constexpr = (2 * K1 + 1) * (K2 + 1)
    k2 = tl.program_id(0) * R + tl.arange(0, R)[None, :]
    inside = k2 <= K2
    field += tl.program_id(1).to(tl.int64) * 2 * S1 * S2
    re = ()
    im = ()
    other_re = ()
    other_im = ()
    for j in tl.static_range(WIDE_LIST):
        n = tl.arange(0, WIDE_LANES)[:, None] + wide_offset(j, S1)
        own, mirrored = n * S2 + k2, n * S2 + (S2 - k2) % S2
        re = re + (tl.load(field + own, mask=inside, other=0.0),)
        im = im + (tl.load(field + S1 * S2 + own, mask=inside, other=0.0),)
        other_re = other_re + (tl.load(field + mirrored, mask=inside, other=0.0),)
        # conjugate, so that its transform is conj(Q_{-k}) at the index k
        other_im = other_im + (-tl.load(field + S1 * S2 + mirrored, mask=inside, other=0.0),)
    re, im = to_narrow(re, im, table, -1.0, S1, R)
    other_re, other_im = to_narrow(other_re, other_im, table, -1.0, S1, R)
    start = tl.program_id(1).to(tl.int64) * 2 * MODES
    for j in tl.static_range(LIST):
        n = tl.arange(0, LANES)[:, None] + LANES * j
        keep = ((n <= K1) | (n >= S1 - K1)) & inside
        mode = tl.where(n <= K1, n, n - S1 + 2 * K1 + 1) * (K2 + 1) + k2
        ar = tl.load(symbols + mode, mask=keep, other=0.0)
        ai = tl.load(symbols + MODES + mode, mask=keep, other=0.0)
        br = tl.load(symbols + 2 * MODES + mode, mask=keep, other=0.0)
        bi = tl.load(symbols + 3 * MODES + mode, mask=keep, other=0.0)
        rate_re = ar * re[j] - ai * im[j] + br * other_re[j] - bi * other_im[j]
        rate_im = ar * im[j] + ai * re[j] + br * other_im[j] + bi * other_re[j]
        rate_re += tl.load(symbols + 4 * MODES + mode, mask=keep, other=0.0)
        rate_im += tl.load(symbols + 5 * MODES + mode, mask=keep, other=0.0)
        finish_stage(rate_re, base, coefficients, rates, target, old1, old2, old3, start + mode, mode, keep,
                     MODES, NUM_OLD, STORE)
        finish_stage(rate_im, base, coefficients, rates, target, old1, old2, old3, start + MODES + mode, mode, keep,
                     MODES, NUM_OLD, STORE)


def square_stepper(
    spectrum: Spectrum,
    shape: Sequence[int],
    fields: tuple[Tensor, Tensor],
    weights: tuple[Tensor, Tensor],
    constant: Tensor,
    stages: Sequence[Stage],
) -> Callable[[Tensor], Tensor]:
    """The step ``state -> state`` of planes ``(batch, 2, *modes)`` for ``df/dt = L f + N(f)``; L is in the stages.

    ``fields`` are the symbols of ``u_1, u_2``; ``weights`` those of ``u_2² - u_1²`` and ``u_1 u_2`` in N, and
    ``constant`` is added to it. All are arrays over the modes, as is what the stages hold.
    """
    (size1, size2), (k1, k2), device = shape, spectrum.cutoff, spectrum.device
    lines1, lines2 = Lines(size1, device), Lines(size2, device)
    modes = spectrum.shape
    u1, u2 = (symbol.to(torch.complex128).expand(modes) for symbol in fields)
    difference, product = (symbol.to(torch.complex128).expand(modes) / (size1 * size2) for symbol in weights)
    spread = _planes(u1 + 1j * u2, u1 - 1j * u2)
    gather = _planes(-difference / 2 - 0.25j * product, -difference / 2 + 0.25j * product, constant.expand(modes))
    tables = stage_tables(stages, device)
    half = math.ceil((k2 + 1) / SPREAD[0]) * SPREAD[0]

    def step(state: Tensor) -> Tensor:
        batch = len(state)
        field = state.new_empty((batch, 2, size1, size2))
        arguments, rates = [state], [torch.empty_like(state) for _ in stages[:-1]]
        for number, (stage, table) in enumerate(zip(stages, tables, strict=True)):
            last = number == len(stages) - 1
            columns, warps = SPREAD
            _spread_columns[(2 * half // columns, batch)](
                arguments[-1], field, spread, lines1.table, K1=k1, K2=k2, S1=size1, S2=size2, HALF=half, R=columns,
                **lines1.both, num_warps=warps,
            )
            rows, warps = SQUARE
            _square_rows[(triton.cdiv(size1, rows), batch)](
                field, lines2.table, S1=size1, S2=size2, HALF=half, R=rows, **lines2.inner, num_warps=warps
            )
            columns, warps = GATHER
            target = torch.empty_like(state)
            old = [rates[index] for index, _ in stage.old]
            _gather_columns[(triton.cdiv(k2 + 1, columns), batch)](
                field, gather, lines1.table, arguments[stage.base], table, state if last else rates[number], target,
                *old, *[state] * (3 - len(old)), K1=k1, K2=k2, S1=size1, S2=size2, R=columns, **lines1.both,
                NUM_OLD=len(old), STORE=not last, num_warps=warps,
            )
            arguments.append(target)
        return arguments[-1]

    return step


def _planes(*symbols: Tensor) -> Tensor:
    """Real and imaginary parts of symbols over the modes, one plane after the other."""
    return torch.view_as_real(torch.stack([symbol.to(torch.complex128) for symbol in symbols])).movedim(
        -1, 1
    ).to(torch.float32).contiguous()
