# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# mypy: disable-error-code="assignment,operator"
"""What ends an evaluation of `cross`: the divergence-free part of the products, viscosity, and the stage of the step.

N = (1 - k kᵀ / |k|²) (u × ω)_k - ν |k|² u_k
"""

from __future__ import annotations

import triton
import triton.language as tl

from factformer.kernels.solvers.stages import finish_stage


@triton.jit
def finish_divergence_free(
    field,
    argument,
    ending,
    unit1,
    unit2,
    unit3,
    viscosity,
    scale,
    N1: tl.constexpr,
    N2: tl.constexpr,
    N3: tl.constexpr,
    PITCH: tl.constexpr,
    OWN_VISCOSITY: tl.constexpr,
    NUM_OLD: tl.constexpr,
    STORE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """All components of a mode, from packed products. OWN_VISCOSITY is 1 where every sample has its own, else 0."""
    MODES: tl.constexpr = N1 * N2 * N3
    mode = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = mode < MODES
    line1, line2, k3 = mode // (N2 * N3), mode // N3 % N2, mode % N3
    plane: tl.constexpr = N1 * N2 * PITCH
    batch = tl.program_id(1).to(tl.int64)
    field += batch * 4 * plane
    own = (line1 * N2 + line2) * PITCH + k3
    mirrored = ((N1 - line1) % N1 * N2 + (N2 - line2) % N2) * PITCH + (PITCH - k3) % PITCH
    ar = tl.load(field + own, mask=keep, other=0.0)
    ai = tl.load(field + plane + own, mask=keep, other=0.0)
    br = tl.load(field + mirrored, mask=keep, other=0.0)
    bi = -tl.load(field + plane + mirrored, mask=keep, other=0.0)
    q1 = tl.where(line1 <= N1 // 2, line1, line1 - N1) * unit1
    q2 = tl.where(line2 <= N2 // 2, line2, line2 - N2) * unit2
    q3 = k3 * unit3
    squared = q1 * q1 + q2 * q2 + q3 * q3
    inverse = tl.where(squared > 0, 1.0 / tl.where(squared > 0, squared, 1.0), 0.0)
    # the products: (a + b)/2, (a - b)/(2i), c
    half = 0.5 * scale
    xr, xi = half * (ar + br), half * (ai + bi)
    yr, yi = half * (ai - bi), half * (br - ar)
    zr = scale * tl.load(field + 2 * plane + own, mask=keep, other=0.0)
    zi = scale * tl.load(field + 3 * plane + own, mask=keep, other=0.0)
    pr = (q1 * xr + q2 * yr + q3 * zr) * inverse
    pi = (q1 * xi + q2 * yi + q3 * zi) * inverse
    damping = tl.load(viscosity + batch * OWN_VISCOSITY) * squared
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
        finish_stage(rr, ending, ending.coefficients, place, mode, keep, 0, NUM_OLD, STORE)
        finish_stage(ri, ending, ending.coefficients, place + MODES, mode, keep, 0, NUM_OLD, STORE)
