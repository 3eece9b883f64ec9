# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# mypy: disable-error-code="assignment,operator"
"""Two-dimensional flow in four kernels an evaluation: the square of a complex field, from modes to modes.

A real field's coefficients ``f̂_k`` stand for two real fields ``u_1, u_2`` with symbols ``s_1, s_2``; packed as
``z = u_1 + i u_2`` they take one complex transform, and ``z² = u_1² - u_2² + 2i u_1 u_2`` is transformed back as one:

    N_k = α_k Q_k + β_k conj(Q_{-k}) + c_k,      Q = coefficients of z²

1. columns: coefficients × symbols, both halves of the spectrum, inverse transform along the first axis;
2. rows: inverse transform along the last axis, square, forward transform; the fields never reach memory;
3. columns: forward transform along the first axis;
4. N, and the stage of the time step.

Only modes within the cut are read and written. Real and imaginary parts lie in planes: ``(batch, 2, *modes)``.
"""

# ruff: noqa: RUF005 (Triton's language has no starred tuples)

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from factformer.kernels._triton.launching import launch
from factformer.kernels.solvers.axis import half_columns, planes_of, transform
from factformer.kernels.solvers.fourier import narrow_index, to_narrow, to_wide, wide_index
from factformer.kernels.solvers.lines import Lines
from factformer.kernels.solvers.stages import Ending, finish_stage, stage_tables, staged_step
from factformer.numerics.spectral import Spectrum
from factformer.numerics.timestepping import Stage

SPREAD, SQUARE = (8, 16), (1, 2)  # columns or rows of a program, and its warps


@triton.jit
def _spread_columns(
    source,
    target,
    symbols,
    table,
    K1: tl.constexpr,
    K2: tl.constexpr,
    S2: tl.constexpr,
    HALF: tl.constexpr,
    LINE: tl.constexpr,
):
    LIST: tl.constexpr = LINE.LIST
    WIDE_LIST: tl.constexpr = LINE.WIDE_LIST
    S1: tl.constexpr = LINE.S
    R: tl.constexpr = LINE.R
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
        n = narrow_index(j, LINE)
        own = tl.where(mirrored, (S1 - n) % S1, n)
        keep = ((own <= K1) | (own >= S1 - K1)) & (k2 <= K2)
        mode = tl.where(own <= K1, own, own - S1 + 2 * K1 + 1) * (K2 + 1) + k2
        fr = tl.load(source + mode, mask=keep, other=0.0)
        fi = tl.load(source + MODES + mode, mask=keep, other=0.0)
        sr = tl.load(symbols + side + mode, mask=keep, other=0.0)
        si = tl.load(symbols + side + MODES + mode, mask=keep, other=0.0)
        re = re + (fr * sr - fi * si,)
        im = im + (sign * (fr * si + fi * sr),)
    re, im = to_wide(re, im, table, 1.0, LINE)
    target += batch * 2 * S1 * S2
    for j in tl.static_range(WIDE_LIST):
        place = wide_index(j, LINE) * S2 + column
        tl.store(target + place, re[j])
        tl.store(target + S1 * S2 + place, im[j])


@triton.jit
def _square_rows(field, table, S1: tl.constexpr, HALF: tl.constexpr, LINE: tl.constexpr):
    LIST: tl.constexpr = LINE.LIST
    WIDE_LIST: tl.constexpr = LINE.WIDE_LIST
    S2: tl.constexpr = LINE.S
    row = tl.program_id(0) * LINE.R + tl.arange(0, LINE.R)[None, :]
    field += tl.program_id(1).to(tl.int64) * 2 * S1 * S2
    re = ()
    im = ()
    for j in tl.static_range(LIST):
        n = narrow_index(j, LINE)
        keep = ((n < HALF) | (n >= S2 - HALF)) & (row < S1)
        re = re + (tl.load(field + row * S2 + n, mask=keep, other=0.0),)
        im = im + (tl.load(field + S1 * S2 + row * S2 + n, mask=keep, other=0.0),)
    re, im = to_wide(re, im, table, 1.0, LINE)
    new_re = ()
    new_im = ()
    for j in tl.static_range(WIDE_LIST):
        new_re = new_re + (re[j] * re[j] - im[j] * im[j],)
        new_im = new_im + (2 * re[j] * im[j],)
    re, im = to_narrow(new_re, new_im, table, -1.0, LINE)
    for j in tl.static_range(LIST):
        n = narrow_index(j, LINE)
        keep = ((n < HALF) | (n >= S2 - HALF)) & (row < S1)
        tl.store(field + row * S2 + n, re[j], mask=keep)
        tl.store(field + S1 * S2 + row * S2 + n, im[j], mask=keep)


@triton.jit
def _finish(
    field,
    symbols,
    ending,
    N1: tl.constexpr,
    N2: tl.constexpr,
    PITCH: tl.constexpr,
    SYMBOLS: tl.constexpr,
    COEFFICIENTS: tl.constexpr,
    NUM_OLD: tl.constexpr,
    STORE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """SYMBOLS and COEFFICIENTS are how many numbers a sample has of its own; 0 where all samples share them."""
    MODES: tl.constexpr = N1 * N2
    mode = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = mode < MODES
    line, k2 = mode // N2, mode % N2
    plane: tl.constexpr = N1 * PITCH
    batch = tl.program_id(1).to(tl.int64)
    field += batch * 2 * plane
    symbols += batch * SYMBOLS
    coefficients = ending.coefficients + batch * COEFFICIENTS
    own = line * PITCH + k2
    mirrored = (N1 - line) % N1 * PITCH + (PITCH - k2) % PITCH
    qr = tl.load(field + own, mask=keep, other=0.0)
    qi = tl.load(field + plane + own, mask=keep, other=0.0)
    mr = tl.load(field + mirrored, mask=keep, other=0.0)
    mi = -tl.load(field + plane + mirrored, mask=keep, other=0.0)
    ar = tl.load(symbols + mode, mask=keep, other=0.0)
    ai = tl.load(symbols + MODES + mode, mask=keep, other=0.0)
    br = tl.load(symbols + 2 * MODES + mode, mask=keep, other=0.0)
    bi = tl.load(symbols + 3 * MODES + mode, mask=keep, other=0.0)
    rate_re = ar * qr - ai * qi + br * mr - bi * mi + tl.load(symbols + 4 * MODES + mode, mask=keep, other=0.0)
    rate_im = ar * qi + ai * qr + br * mi + bi * mr + tl.load(symbols + 5 * MODES + mode, mask=keep, other=0.0)
    place = batch * 2 * MODES + mode
    finish_stage(rate_re, ending, coefficients, place, mode, keep, MODES, NUM_OLD, STORE)
    finish_stage(rate_im, ending, coefficients, place + MODES, mode, keep, MODES, NUM_OLD, STORE)


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
    ``constant`` is added to it. All are arrays over the modes, as is what the stages hold; these and ``constant`` may
    have a leading axis of samples.
    """
    (size1, size2), (k1, k2), device = shape, spectrum.cutoff, spectrum.device
    lines1, lines2 = Lines(size1, device), Lines(size2, device)
    modes = spectrum.shape
    u1, u2 = (symbol.to(torch.complex128).expand(modes) for symbol in fields)
    difference, product = (symbol.to(torch.complex128).expand(modes) / (size1 * size2) for symbol in weights)
    spread = planes_of(u1 + 1j * u2, u1 - 1j * u2)
    weighed = (-difference / 2 - 0.25j * product, -difference / 2 + 0.25j * product)
    own_constants = constant if constant.ndim > len(modes) else constant.unsqueeze(0)
    gather = torch.cat([planes_of(*weighed, item.expand(modes)) for item in own_constants])
    tables = stage_tables(stages, device, len(modes))
    numbers = {"SYMBOLS": gather.numel() // len(own_constants) if len(own_constants) > 1 else 0}
    half = half_columns(k2, size2)

    def step(state: Tensor) -> Tensor:
        batch = len(state)
        field = state.new_empty((batch, 2, size1, size2))
        modes_of_square = state.new_empty((batch, 2, 2 * k1 + 1, size2))

        def evaluate(argument: Tensor, ending: Ending, constants: dict[str, Any]) -> None:
            columns, warps = SPREAD
            launch(
                _spread_columns,
                (2 * half // columns, batch),
                argument,
                field,
                spread,
                lines1.table,
                K1=k1,
                K2=k2,
                S2=size2,
                HALF=half,
                LINE=lines1.taken(columns),
                num_warps=warps,
            )
            rows, warps = SQUARE
            launch(
                _square_rows,
                (triton.cdiv(size1, rows), batch),
                field,
                lines2.table,
                S1=size1,
                HALF=half,
                LINE=lines2.taken(rows),
                num_warps=warps,
            )
            transform(field, modes_of_square, -2, k1, lines1, half)
            launch(
                _finish,
                (triton.cdiv(2 * k1 * (k2 + 1) + k2 + 1, 512), batch),
                modes_of_square,
                gather,
                ending,
                N1=2 * k1 + 1,
                N2=k2 + 1,
                PITCH=size2,
                **numbers,
                COEFFICIENTS=ending.coefficients[0].numel() if len(ending.coefficients) > 1 else 0,
                **constants,
                BLOCK=512,
            )

        return staged_step(state, stages, tables, evaluate)

    return step
