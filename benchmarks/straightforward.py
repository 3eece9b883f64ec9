"""The four solvers as one would first write them, for `solvers.py` to compare with.

The schemes are those of the package; the formulation is not: complex FFTs of full spectra, one trajectory at a time,
the pressure of smoke by conjugate gradients, Darcy by one sparse direct solve per sample.
"""

from __future__ import annotations

import math

import numpy as np
import scipy.sparse
import scipy.sparse.linalg
import torch
from torch import Tensor

from factformer.numerics.timestepping import etd_coefficients


def kolmogorov_flow(initial: Tensor, dt: float, steps: int) -> Tensor:
    """ETDRK4 with the advective form: five transforms per evaluation."""
    size, dtype = initial.shape[1], initial.dtype
    k = torch.fft.fftfreq(size, 1 / size, dtype=dtype)
    k1, k2 = k[:, None].expand(size, size), k[None, :].expand(size, size)
    squared = k1**2 + k2**2
    inverse = torch.where(squared > 0, 1 / squared.clamp_min(1), 0)
    keep = (k1.abs() <= (size - 1) // 3) & (k2.abs() <= (size - 1) // 3)
    x2 = torch.arange(size, dtype=dtype) * (2 * math.pi / size)
    force = torch.fft.fft2(-8 * torch.cos(8 * x2).expand(size, -1))
    whole, half, q, f1, f2, f3 = (c.to(dtype) for c in etd_coefficients(-squared / 1000 - 0.1, dt))

    def term(w: Tensor) -> Tensor:
        w = w * keep
        u1 = torch.fft.ifft2(1j * k2 * w * inverse).real
        u2 = torch.fft.ifft2(-1j * k1 * w * inverse).real
        d1, d2 = torch.fft.ifft2(1j * k1 * w).real, torch.fft.ifft2(1j * k2 * w).real
        return -torch.fft.fft2(u1 * d1 + u2 * d2) * keep + force

    result = []
    for field in initial[..., 0]:
        w = torch.fft.fft2(field)
        for _ in range(steps):
            n0 = term(w)
            a = half * w + q * n0
            na = term(a)
            nb = term(half * w + q * na)
            nc = term(half * a + q * (2 * nb - n0))
            w = whole * w + f1 * n0 + f2 * (na + nb) + f3 * nc
        result.append(torch.fft.ifft2(w).real)
    return torch.stack(result)


def isotropic_turbulence(initial: Tensor, dt: float, steps: int, viscosity: float) -> Tensor:
    """Runge-Kutta with the 3/2 rule, without forcing."""
    size, dtype = initial.shape[1], initial.dtype
    fine = 3 * size // 2
    k = torch.fft.fftfreq(size, 1 / size, dtype=dtype)
    axes = [k.reshape([-1 if m == axis else 1 for m in range(3)]).expand(size, size, size) for axis in range(3)]
    kx, ky, kz = axes
    squared = kx**2 + ky**2 + kz**2
    inverse = torch.where(squared > 0, 1 / squared.clamp_min(1), 0)
    index = torch.cat([torch.arange(size // 2), torch.arange(-size // 2 + 1, 0)])
    here = (slice(None), *torch.meshgrid(index, index, index, indexing="ij"))
    there = (slice(None), *torch.meshgrid(index % fine, index % fine, index % fine, indexing="ij"))

    def on_fine_grid(coefficients: Tensor) -> Tensor:
        wide = coefficients.new_zeros(3, fine, fine, fine)
        wide[there] = coefficients[here]
        return torch.fft.ifftn(wide, dim=(1, 2, 3), norm="forward").real

    def rate(u: Tensor) -> Tensor:
        curl = 1j * torch.stack([ky * u[2] - kz * u[1], kz * u[0] - kx * u[2], kx * u[1] - ky * u[0]])
        product = torch.linalg.cross(on_fine_grid(u), on_fine_grid(curl), dim=0)
        n = torch.zeros_like(u)
        n[here] = torch.fft.fftn(product, dim=(1, 2, 3), norm="forward")[there]
        along = (kx * n[0] + ky * n[1] + kz * n[2]) * inverse
        return n - torch.stack(axes) * along - viscosity * squared * u

    result = []
    for velocity in initial:
        u = torch.zeros(3, size, size, size, dtype=torch.complex128 if dtype == torch.float64 else torch.complex64)
        u[here] = torch.fft.fftn(velocity.movedim(-1, 0), dim=(1, 2, 3), norm="forward")[here]
        for _ in range(steps):
            r1 = rate(u)
            r2 = rate(u + dt / 2 * r1)
            r3 = rate(u + dt / 2 * r2)
            r4 = rate(u + dt * r3)
            u = u + dt / 6 * (r1 + 2 * r2 + 2 * r3 + r4)
        result.append(torch.fft.ifftn(u, dim=(1, 2, 3), norm="forward").real.movedim(0, -1))
    return torch.stack(result)


def smoke_buoyancy(initial: Tensor, dt: float, steps: int) -> Tensor:
    """The staggered scheme with wall faces stored and every velocity interpolated from its own grid."""
    size, dtype = initial.shape[1], initial.dtype
    h = 8 / size
    origins = [torch.tensor([0.0 if m == c else 0.5 for m in range(3)], dtype=dtype) for c in range(3)]
    centre = torch.full((3,), 0.5, dtype=dtype)

    def points(shape: tuple[int, ...], origin: Tensor) -> Tensor:
        axes = torch.meshgrid(*[torch.arange(n, dtype=dtype) for n in shape], indexing="ij")
        return (torch.stack(axes, -1) + origin) * h

    def flow(velocity: list[Tensor], x: Tensor) -> Tensor:
        return torch.stack([_sample(velocity[c], x / h - origins[c], True) for c in range(3)], -1)

    def close_walls(values: Tensor, c: int) -> None:
        values.narrow(c, 0, 1).zero_()
        values.narrow(c, size, 1).zero_()

    result = []
    for density in initial[..., 0]:
        velocity = [torch.zeros([size + (m == c) for m in range(3)], dtype=dtype) for c in range(3)]
        for _ in range(steps):
            x = points((size,) * 3, centre)
            density = _sample(density, (x - dt * flow(velocity, x)) / h - centre, False)
            moved = []
            for c in range(3):
                x = points(tuple(velocity[c].shape), origins[c])
                new = _sample(velocity[c], (x - dt * flow(velocity, x)) / h - origins[c], True)
                close_walls(new, c)
                if c == 2:
                    new[:, :, 1:-1] += dt * 0.5 * 0.5 * (density[:, :, 1:] + density[:, :, :-1])
                wide = torch.nn.functional.pad(new, [1] * 6)
                change = torch.zeros_like(wide)
                for m in range(3):
                    change += wide.roll(1, m) + wide.roll(-1, m) - 2 * wide
                new = new + 0.003 * dt / h**2 * change[1:-1, 1:-1, 1:-1]
                close_walls(new, c)
                moved.append(new)
            divergence = moved[0].diff(dim=0) + moved[1].diff(dim=1) + moved[2].diff(dim=2)
            pressure = _neumann_conjugate_gradients(divergence / h, h)
            for c in range(3):
                moved[c].narrow(c, 1, size - 1).add_(pressure.diff(dim=c) / h)
            velocity = moved
        result.append(torch.stack([density, *(velocity[c].narrow(c, 0, size) for c in range(3))], -1))
    return torch.stack(result)


def darcy_flow(coefficient: Tensor) -> Tensor:
    """Assemble the five-point matrix of each sample and factorise it."""
    size = coefficient.shape[1]
    nodes = np.arange(size * size).reshape(size, size)
    inner = nodes[1:-1, 1:-1].ravel()
    result = []
    for a in coefficient[..., 0].double().numpy():
        matrix = scipy.sparse.csr_matrix((size * size, size * size))
        for low, high in ((nodes[:-1].ravel(), nodes[1:].ravel()), (nodes[:, :-1].ravel(), nodes[:, 1:].ravel())):
            face = (a.ravel()[low] + a.ravel()[high]) / 2 * (size - 1) ** 2
            rows, columns = np.concatenate([low, high, low, high]), np.concatenate([high, low, low, high])
            entries = np.concatenate([-face, -face, face, face])
            matrix = matrix + scipy.sparse.coo_matrix((entries, (rows, columns)), shape=matrix.shape).tocsr()
        u = np.zeros(size * size)
        u[inner] = scipy.sparse.linalg.spsolve(matrix[inner][:, inner].tocsc(), np.ones(len(inner)))
        result.append(torch.from_numpy(u.reshape(size, size)))
    return torch.stack(result).to(coefficient.dtype)


def _sample(values: Tensor, position: Tensor, outside_zero: bool) -> Tensor:
    """Trilinear interpolation, corner by corner."""
    base = position.floor()
    limit = torch.tensor(values.shape, dtype=values.dtype) - 1
    total = torch.zeros(position.shape[:-1], dtype=values.dtype)
    for corner in range(8):
        where = base + torch.tensor([corner >> m & 1 for m in range(3)])
        weight = (1 - (position - where).abs()).prod(-1)
        if outside_zero:
            weight = weight * ((where >= 0) & (where <= limit)).all(-1)
        index = torch.minimum(where.clamp_min(0), limit).long()
        total += weight * values[index[..., 0], index[..., 1], index[..., 2]]
    return total


def _neumann_conjugate_gradients(right: Tensor, h: float) -> Tensor:
    def operator(p: Tensor) -> Tensor:
        result = torch.zeros_like(p)
        for m in range(3):
            flux = p.diff(dim=m)
            result.narrow(m, 0, p.shape[m] - 1).sub_(flux)
            result.narrow(m, 1, p.shape[m] - 1).add_(flux)
        return result / h**2

    p, r = torch.zeros_like(right), right - right.mean()
    d, rr = r.clone(), float((r * r).sum())
    goal = 1e-10 * rr
    while rr > goal:
        image = operator(d)
        length = rr / float((d * image).sum())
        p, r = p + length * d, r - length * image
        rr, old = float((r * r).sum()), rr
        d = r + rr / old * d
    return p
