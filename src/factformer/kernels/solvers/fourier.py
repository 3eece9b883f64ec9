# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# mypy: disable-error-code="assignment,operator"
"""Short Fourier transforms in registers, the building block of the solvers' GPU kernels.

A line of ``S`` numbers is held by a list (tuple) of tensors ``[lanes, columns]``, so that a butterfly over the list
is arithmetic within a thread, and only the exchange of list and lanes between two butterflies passes through shared
memory. There are two orders of a line, and a transform goes from the one to the other:

* narrow: element ``j`` of the list holds the indices ``lanes · j + lane``;
* wide, for ``S = 96`` alone: element ``8 g + j`` of 24 holds the indices ``12 j + 4 g + lane`` of 4 lanes. For the
  other sizes it is the narrow one.

``S = 16 = 4·4``, ``64 = 8·8``, ``96 = 12·8`` and ``512 = 8·8·8``. Transforms carry no factor;
``sign = +1`` is the inverse one.
"""

# ruff: noqa: RUF005, RET505 (Triton has no starred tuples, and compiles what follows a return in an if without else)

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def narrow_index(j, LINE: tl.constexpr):
    """The indices that element ``j`` holds in the narrow order."""
    return tl.arange(0, LINE.LANES)[:, None] + LINE.LANES * j


@triton.jit
def wide_index(j, LINE: tl.constexpr):
    """The indices that element ``j`` holds in the wide order."""
    lane = tl.arange(0, LINE.WIDE_LANES)[:, None]
    if LINE.S == 96:
        return lane + (12 * (j % 8) + 4 * (j // 8))
    else:
        return lane + LINE.WIDE_LANES * j


@triton.jit
def to_wide(re, im, table, sign, LINE: tl.constexpr):
    """The transform of a line in the narrow order; the result is in the wide one."""
    if LINE.S == 96:
        return _twelve_by_eight(re, im, table, sign, LINE.R)
    elif LINE.S == 64:
        return _eight_by_eight(re, im, table, sign, LINE.R)
    elif LINE.S == 16:
        return _four_by_four(re, im, table, sign, LINE.R)
    else:
        return _eight_cubed(re, im, table, sign, LINE.R)


@triton.jit
def to_narrow(re, im, table, sign, LINE: tl.constexpr):
    """The transform of a line in the wide order; the result is in the narrow one."""
    if LINE.S == 96:
        return _eight_by_twelve(re, im, table, sign, LINE.R)
    else:  # both orders are the same
        return to_wide(re, im, table, sign, LINE)


@triton.jit
def _four_by_four(re, im, table, sign, R: tl.constexpr):
    re, im = _four_list(re, im, sign)
    re, im = _twist(re, im, table, tl.arange(0, 4)[:, None], sign, 4, 16)
    re = _split4(_turn(_join4(re[0], re[1], re[2], re[3]), 4, 4, R))
    im = _split4(_turn(_join4(im[0], im[1], im[2], im[3]), 4, 4, R))
    return _four_list(re, im, sign)


@triton.jit
def _eight_by_eight(re, im, table, sign, R: tl.constexpr):
    lane = tl.arange(0, 8)[:, None]
    re, im = _eight(re, im, sign)
    re, im = _twist(re, im, table, lane, sign, 8, 64)
    re, im = _exchange(re, 8, 1, R), _exchange(im, 8, 1, R)
    return _eight(re, im, sign)


@triton.jit
def _eight_cubed(re, im, table, sign, R: tl.constexpr):
    lane = tl.arange(0, 64)[:, None]
    re, im = _eight(re, im, sign)
    re, im = _twist(re, im, table, lane, sign, 8, 512)
    # list j, lanes (p, q) -> list p, lanes (q, j)
    re, im = _exchange(re, 8, 8, R), _exchange(im, 8, 8, R)
    re, im = _eight(re, im, sign)
    re, im = _twist(re, im, table, lane // 8 * 8, sign, 8, 512)
    # list i, lanes (q, j) -> list q, lanes (i, j)
    re, im = _exchange_first(re, R), _exchange_first(im, R)
    return _eight(re, im, sign)


@triton.jit
def _twelve_by_eight(re, im, table, sign, R: tl.constexpr):
    re, im = _twelve(re, im, sign)
    re, im = _twist(re, im, table, tl.arange(0, 8)[:, None], sign, 12, 96)
    all_re = ()
    all_im = ()
    for g in tl.static_range(3):
        part_re = _split8(_turn(_join4(re[4 * g], re[4 * g + 1], re[4 * g + 2], re[4 * g + 3]), 8, 4, R))
        part_im = _split8(_turn(_join4(im[4 * g], im[4 * g + 1], im[4 * g + 2], im[4 * g + 3]), 8, 4, R))
        part_re, part_im = _eight(part_re, part_im, sign)
        all_re = all_re + part_re
        all_im = all_im + part_im
    return all_re, all_im


@triton.jit
def _eight_by_twelve(re, im, table, sign, R: tl.constexpr):
    all_re = ()
    all_im = ()
    lane = tl.arange(0, 4)[:, None]
    for g in tl.static_range(3):
        part_re = (
            re[8 * g],
            re[8 * g + 1],
            re[8 * g + 2],
            re[8 * g + 3],
            re[8 * g + 4],
            re[8 * g + 5],
            re[8 * g + 6],
            re[8 * g + 7],
        )
        part_im = (
            im[8 * g],
            im[8 * g + 1],
            im[8 * g + 2],
            im[8 * g + 3],
            im[8 * g + 4],
            im[8 * g + 5],
            im[8 * g + 6],
            im[8 * g + 7],
        )
        part_re, part_im = _eight(part_re, part_im, sign)
        part_re, part_im = _twist(part_re, part_im, table, 4 * g + lane, sign, 8, 96)
        all_re = all_re + _split4(_turn(_join8(part_re), 4, 8, R))
        all_im = all_im + _split4(_turn(_join8(part_im), 4, 8, R))
    return _twelve(all_re, all_im, sign)


@triton.jit
def _twist(re, im, table, step, sign, LIST: tl.constexpr, S: tl.constexpr):
    """Element ``j`` times ``exp(± 2πi j step / S)``; ``table`` holds S cosines, then S sines."""
    new_re = (re[0],)
    new_im = (im[0],)
    for j in tl.static_range(1, LIST):
        cosine = tl.load(table + j * step)
        sine = sign * tl.load(table + S + j * step)
        new_re = new_re + (re[j] * cosine - im[j] * sine,)
        new_im = new_im + (re[j] * sine + im[j] * cosine,)
    return new_re, new_im


@triton.jit
def _join4(a, b, c, d):
    return tl.join(tl.join(a, c), tl.join(b, d))


@triton.jit
def _join8(x):
    return tl.join(_join4(x[0], x[2], x[4], x[6]), _join4(x[1], x[3], x[5], x[7]))


@triton.jit
def _split4(x):
    even, odd = tl.split(x)
    a, c = tl.split(even)
    b, d = tl.split(odd)
    return a, b, c, d


@triton.jit
def _split8(x):
    even, odd = tl.split(x)
    a, c, e, g = _split4(even)
    b, d, f, h = _split4(odd)
    return a, b, c, d, e, f, g, h


@triton.jit
def _turn(x, LANES: tl.constexpr, LIST: tl.constexpr, R: tl.constexpr):
    """Lanes and list of a joined tensor change places; each counts 4 or 8."""
    turned = tl.permute(tl.reshape(x, [LANES, R, LIST]), (2, 1, 0))
    if LANES == 8:
        return tl.reshape(turned, [LIST, R, 2, 2, 2])
    else:
        return tl.reshape(turned, [LIST, R, 2, 2])


@triton.jit
def _exchange(x, LIST: tl.constexpr, REST: tl.constexpr, R: tl.constexpr):
    """List ``j`` and the slow part ``p`` of the lanes ``(p, q)`` change places: list ``p``, lanes ``(q, j)``."""
    joined = tl.reshape(_join8(x), [8, REST, R, LIST])
    return _split8(tl.reshape(tl.permute(joined, (1, 3, 2, 0)), [REST * LIST, R, 2, 2, 2]))


@triton.jit
def _exchange_first(x, R: tl.constexpr):
    """List ``i`` and the slow part ``q`` of the lanes ``(q, j)`` change places: list ``q``, lanes ``(i, j)``."""
    joined = tl.reshape(_join8(x), [8, 8, R, 8])
    return _split8(tl.reshape(tl.permute(joined, (3, 1, 2, 0)), [64, R, 2, 2, 2]))


@triton.jit
def _four(ar, ai, br, bi, cr, ci, dr, di, sign):
    """The transform of four numbers, as real and imaginary parts in turn."""
    pr, pi, qr, qi = ar + cr, ai + ci, ar - cr, ai - ci
    tr, ti, ur, ui = br + dr, bi + di, br - dr, bi - di
    vr, vi = -sign * ui, sign * ur
    return pr + tr, pi + ti, qr + vr, qi + vi, pr - tr, pi - ti, qr - vr, qi - vi


@triton.jit
def _four_list(r, i, sign):
    ar, ai, br, bi, cr, ci, dr, di = _four(r[0], i[0], r[1], i[1], r[2], i[2], r[3], i[3], sign)
    return (ar, br, cr, dr), (ai, bi, ci, di)


@triton.jit
def _eight(r, i, sign):
    """The transform of a list of eight."""
    root: tl.constexpr = 0.7071067811865476
    ar, br, cr, dr = r[1] - r[5], r[2] - r[6], r[3] - r[7], r[0] - r[4]
    ai, bi, ci, di = i[1] - i[5], i[2] - i[6], i[3] - i[7], i[0] - i[4]
    x0r, x0i, x2r, x2i, x4r, x4i, x6r, x6i = _four(
        r[0] + r[4], i[0] + i[4], r[1] + r[5], i[1] + i[5], r[2] + r[6], i[2] + i[6], r[3] + r[7], i[3] + i[7], sign
    )
    x1r, x1i, x3r, x3i, x5r, x5i, x7r, x7i = _four(
        dr,
        di,
        root * (ar - sign * ai),
        root * (ai + sign * ar),
        -sign * bi,
        sign * br,
        -root * (cr + sign * ci),
        root * (sign * cr - ci),
        sign,
    )
    return (x0r, x1r, x2r, x3r, x4r, x5r, x6r, x7r), (x0i, x1i, x2i, x3i, x4i, x5i, x6i, x7i)


@triton.jit
def _three(ar, ai, br, bi, cr, ci, sign):
    sine: tl.constexpr = 0.8660254037844386
    tr, ti = br + cr, bi + ci
    mr, mi = ar - 0.5 * tr, ai - 0.5 * ti
    sr, si = -sign * sine * (bi - ci), sign * sine * (br - cr)
    return ar + tr, ai + ti, mr + sr, mi + si, mr - sr, mi - si


@triton.jit
def _twelve(r, i, sign):
    """The transform of a list of twelve: three, then four; ``n = 4 a + b``, ``k = c + 3 d``."""
    root: tl.constexpr = 0.8660254037844386
    a0r, a0i, a1r, a1i, a2r, a2i = _three(r[0], i[0], r[4], i[4], r[8], i[8], sign)
    b0r, b0i, b1r, b1i, b2r, b2i = _three(r[1], i[1], r[5], i[5], r[9], i[9], sign)
    c0r, c0i, c1r, c1i, c2r, c2i = _three(r[2], i[2], r[6], i[6], r[10], i[10], sign)
    d0r, d0i, d1r, d1i, d2r, d2i = _three(r[3], i[3], r[7], i[7], r[11], i[11], sign)
    # the angles b c π/6: cos and sin of 30°, 60°, 90°, 120° and 180°
    b1r, b1i = root * b1r - 0.5 * sign * b1i, root * b1i + 0.5 * sign * b1r
    b2r, b2i = 0.5 * b2r - root * sign * b2i, 0.5 * b2i + root * sign * b2r
    c1r, c1i = 0.5 * c1r - root * sign * c1i, 0.5 * c1i + root * sign * c1r
    c2r, c2i = -0.5 * c2r - root * sign * c2i, -0.5 * c2i + root * sign * c2r
    d1r, d1i = -sign * d1i, sign * d1r
    d2r, d2i = -d2r, -d2i
    x0r, x0i, x3r, x3i, x6r, x6i, x9r, x9i = _four(a0r, a0i, b0r, b0i, c0r, c0i, d0r, d0i, sign)
    x1r, x1i, x4r, x4i, x7r, x7i, x10r, x10i = _four(a1r, a1i, b1r, b1i, c1r, c1i, d1r, d1i, sign)
    x2r, x2i, x5r, x5i, x8r, x8i, x11r, x11i = _four(a2r, a2i, b2r, b2i, c2r, c2i, d2r, d2i, sign)
    return (
        (x0r, x1r, x2r, x3r, x4r, x5r, x6r, x7r, x8r, x9r, x10r, x11r),
        (x0i, x1i, x2i, x3i, x4i, x5i, x6i, x7i, x8i, x9i, x10i, x11i),
    )
