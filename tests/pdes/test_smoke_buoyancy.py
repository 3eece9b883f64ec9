"""Smoke in a box: rest states, transport, bounds, divergence, and a slow reference of one step."""

import itertools
import math

import pytest
import torch

from factformer import simulate
from factformer.errors import UserError
from factformer.numerics.projection import staggered_divergence
from factformer.pdes import find_pde
from solver_cases import rates, relative, start

NAME = "smoke_buoyancy"
PDE = find_pde(NAME)


def inner_faces(frame: torch.Tensor) -> list[torch.Tensor]:
    """The inner faces of each component of ``(batch, *grid, 4)``, from lower faces."""
    return [frame[..., m + 1].narrow(m + 1, 1, frame.shape[m + 1] - 1) for m in range(3)]


def divergence(frame: torch.Tensor) -> torch.Tensor:
    return staggered_divergence(inner_faces(frame), [8 / size for size in frame.shape[1:-1]])


def test_uniform_smoke_stays_at_rest() -> None:
    """Buoyancy of a uniform density accelerates all of it alike, and in a closed box pressure holds it up.

    Exactly so without viscosity; the scheme diffuses the buoyant velocity before it projects, with zeros beyond
    the walls, so that viscosity leaves a creep along the walls of the order ν dt/h² of a step's acceleration.
    """
    density = torch.full((1, 6, 7, 8, 1), 1.7, dtype=torch.float64)
    frames = simulate(NAME, density, 5, viscosity=0.0)
    assert frames[..., 1:].abs().max() < 1e-13
    torch.testing.assert_close(frames[..., :1], density[:, None].expand(-1, 5, -1, -1, -1, -1))
    creep = simulate(NAME, density, 2)[:, 1]
    assert 0 < creep[..., 1:].abs().max() < 0.75 * 0.5 * 1.7 * 0.003 * 0.75
    assert torch.equal(creep[..., :1], density)


def test_smoke_that_is_stratified_stays_at_rest_and_a_warm_blob_rises() -> None:
    layers = torch.linspace(0, 1, 8, dtype=torch.float64).expand(1, 6, 6, 8)[..., None]
    assert simulate(NAME, layers, 4, viscosity=0.0)[..., 1:].abs().max() < 1e-13
    blob = torch.zeros(1, 9, 9, 12, 1, dtype=torch.float64)
    blob[:, 3:6, 3:6, 2:5] = 1
    height = torch.arange(12, dtype=torch.float64)
    mass = simulate(NAME, blob, 6)[0, ..., 0].sum((1, 2))
    centre = (mass * height).sum(-1) / mass.sum(-1)
    assert (centre.diff()[1:] > 0).all()
    sinking = simulate(NAME, blob, 6, buoyancy=-0.5)[0, ..., 0].sum((1, 2))
    assert (((sinking * height).sum(-1) / sinking.sum(-1)).diff()[1:] < 0).all()


def test_the_first_step_is_the_projected_buoyancy() -> None:
    """From rest: u = dt · buoyancy · (what of the force is no gradient), linear in both; density has not moved."""
    density = start(PDE, count=1)
    one = simulate(NAME, density, 2, viscosity=0.0)
    assert torch.equal(one[:, 1, ..., :1], density)
    double = simulate(NAME, density, 2, viscosity=0.0, buoyancy=1.0)
    torch.testing.assert_close(double[:, 1, ..., 1:], 2 * one[:, 1, ..., 1:])
    force = 0.75 * 0.5 * 0.5 * (density[:, :, :, 1:, 0] + density[:, :, :, :-1, 0])
    u, _, w = inner_faces(one[:, 1])
    # the rest is a gradient: it has no curl on the edges between faces normal to x1 and x3
    rest = w - force
    curl = u.diff(dim=3) / (8 / 10) - rest.diff(dim=1) / (8 / 10)
    assert curl.abs().max() < 1e-12


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-13), (torch.float32, 2e-6)])
def test_divergence_is_at_round_off(dtype: torch.dtype, bound: float) -> None:
    frames = simulate(NAME, start(PDE, count=2, size=16, dtype=dtype), 8)
    speed = float(frames[..., 1:].abs().max()) / (8 / 16)
    for j in range(8):
        assert divergence(frames[:, j]).abs().max() < bound * max(speed, 1)


def test_walls_are_closed_and_density_keeps_its_bounds() -> None:
    """Nothing flows through walls; interpolation makes no new extremes; mass drifts by per cents, not more."""
    frames = simulate(NAME, start(PDE, count=3, size=14), 29)
    for m in range(3):
        assert frames[..., m + 1].select(m + 2, 0).abs().max() == 0
    density = frames[..., 0].flatten(2)
    assert (density.amax(-1).diff() <= 1e-12).all()
    assert (density.amin(-1).diff() >= -1e-12).all()
    mass = density.mean(-1)
    assert (mass / mass[:, :1] - 1).abs().max() < 0.2


def naive_step(
    density: torch.Tensor, velocity: list[torch.Tensor], dt: float, viscosity: float, buoyancy: float
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """One step up to the projection, point by point in plain Python, for one sample. Faces include the walls."""
    shape, h = density.shape, [8 / size for size in density.shape]

    def sample(values: torch.Tensor, origin: list[float], point: list[float], outside_zero: bool) -> float:
        total = 0.0
        index = [(x - o) / step for x, o, step in zip(point, origin, h, strict=True)]
        base = [math.floor(i) for i in index]
        for corner in itertools.product((0, 1), repeat=3):
            weight, where = 1.0, []
            for b, c, i in zip(base, corner, index, strict=True):
                weight *= (i - b) if c else 1 - (i - b)
                where.append(b + c)
            if outside_zero:
                inside = all(0 <= w < size for w, size in zip(where, values.shape, strict=True))
                total += weight * float(values[tuple(where)]) if inside else 0.0
            else:
                where = [min(max(w, 0), size - 1) for w, size in zip(where, values.shape, strict=True)]
                total += weight * float(values[tuple(where)])
        return total

    origins = [[0.0 if m == c else h[m] / 2 for m in range(3)] for c in range(3)]
    centre = [step / 2 for step in h]

    def flow(point: list[float]) -> list[float]:
        return [sample(velocity[c], origins[c], point, outside_zero=True) for c in range(3)]

    new_density = torch.zeros_like(density)
    for cell in itertools.product(*(range(size) for size in shape)):
        point = [o + i * step for o, i, step in zip(centre, cell, h, strict=True)]
        source = [x - dt * u for x, u in zip(point, flow(point), strict=True)]
        new_density[cell] = sample(density, centre, source, outside_zero=False)
    carried = []
    for c in range(3):
        result = torch.zeros_like(velocity[c])
        for face in itertools.product(*(range(size) for size in velocity[c].shape)):
            if face[c] in (0, shape[c]):
                continue
            point = [o + i * step for o, i, step in zip(origins[c], face, h, strict=True)]
            source = [x - dt * u for x, u in zip(point, flow(point), strict=True)]
            result[face] = sample(velocity[c], origins[c], source, outside_zero=True)
            if c == 2:
                below = (face[0], face[1], face[2] - 1)
                result[face] += dt * buoyancy * 0.5 * (new_density[below] + new_density[face])
        carried.append(result)
    diffused = []
    for c, values in enumerate(carried):
        padded = torch.nn.functional.pad(values, [1] * 6)
        laplacian = sum((padded.roll(1, m) + padded.roll(-1, m) - 2 * padded) / h[m] ** 2 for m in range(3))
        result = values + viscosity * dt * laplacian[1:-1, 1:-1, 1:-1]
        result.select(c, 0).zero_()
        result.select(c, shape[c]).zero_()
        diffused.append(result)
    return new_density, diffused


def test_a_step_is_what_the_scheme_says_point_by_point() -> None:
    """The second step against plain loops: traces, walls, ghosts, buoyancy of the new density, diffusion. What the
    projection adds is a gradient, so that the two velocities differ by a field without discrete curl."""
    initial = start(PDE, count=1, size=6)
    frames = simulate(NAME, initial, 6, dt=0.75)[0]
    before, after = frames[4], frames[5]
    velocity = [torch.nn.functional.pad(before[..., m + 1], [0, 0] * (2 - m) + [0, 1] + [0, 0] * m) for m in range(3)]
    density, expected = naive_step(before[..., 0], velocity, 0.75, 0.003, 0.5)
    torch.testing.assert_close(after[..., 0], density, atol=1e-12, rtol=0)
    rest = [inner_faces(after[None])[m][0] - expected[m].narrow(m, 1, 5) for m in range(3)]
    for a, b in ((0, 1), (1, 2), (0, 2)):
        assert (rest[a].diff(dim=b) - rest[b].diff(dim=a)).abs().max() < 1e-12
    assert after[..., 1:].abs().max() > 0.1


def test_velocity_at_cells_is_the_mean_of_the_two_faces() -> None:
    density = start(PDE, count=1)
    faces, cells = (simulate(NAME, density, 4, velocity_points=where) for where in ("lower_faces", "cells"))
    u = torch.cat([faces[:, -1, ..., 1], torch.zeros_like(faces[:, -1, :1, ..., 1])], dim=1)
    torch.testing.assert_close(cells[:, -1, ..., 1], 0.5 * (u[:, 1:] + u[:, :-1]))
    assert torch.equal(cells[..., 0], faces[..., 0])


def test_first_order_in_time() -> None:
    density = start(PDE, count=1, size=10)
    reference = simulate(NAME, density, 2, 1.5, dt=1.5 / 256)[:, -1]
    errors = [relative(simulate(NAME, density, 2, 1.5, dt=1.5 / n)[:, -1], reference) for n in (4, 8, 16)]
    assert min(rates(errors)) > 0.75, errors


def test_the_start_is_a_few_smooth_blobs() -> None:
    """|g| with g of zero mean and unit deviation: ⟨d²⟩ = 1; the same field on every grid; smooth."""
    coarse, fine = start(PDE, count=3, size=12), start(PDE, count=3, size=36)
    assert coarse.square().mean((1, 2, 3, 4)).tolist() == pytest.approx([1.0] * 3)
    assert (coarse >= 0).all()
    # the centre of a coarse cell is that of the middle one of three finer cells
    torch.testing.assert_close(fine[:, 1::3, 1::3, 1::3], coarse, rtol=1e-3, atol=1e-3)
    assert fine.diff(dim=1).abs().max() < 0.5


def test_unstable_diffusion_is_refused() -> None:
    with pytest.raises(UserError, match=r"use dt ≤ 0\.2"):
        simulate(NAME, torch.ones(1, 16, 16, 16, 1), 2, viscosity=0.2)
    frames = simulate(NAME, torch.rand(1, 16, 16, 16, 1), 2, viscosity=0.2, dt=0.2)
    assert torch.isfinite(frames).all()


def test_an_overflow_is_a_blow_up() -> None:
    with pytest.raises(UserError, match="blew up"):
        simulate("smoke_buoyancy", torch.rand(1, 6, 6, 6, 1), 8, buoyancy=1e38)


def test_a_solution_goes_on_from_any_of_its_frames() -> None:
    frames = simulate(NAME, start(PDE, size=12), 5, 0.75)
    assert torch.equal(simulate(NAME, frames[:, 2], 3, 0.75), frames[:, 2:])
    with pytest.raises(UserError, match=r"need \(batch, size, size, size, 1 or 4\)"):
        simulate(NAME, frames[:, 2, ..., :2], 3, 0.75)


def test_a_coarser_grid_keeps_smoke_and_fluxes() -> None:
    frames = simulate(NAME, start(PDE, size=12), 4, 0.75)
    coarse = PDE.coarsened(frames, (6, 4, 3))
    torch.testing.assert_close(coarse[..., 0].mean((2, 3, 4)), frames[..., 0].mean((2, 3, 4)))
    for frame in coarse.unbind(1):
        assert divergence(frame).abs().max() < 1e-13
    assert coarse[:, -1, ..., 1:].abs().max() > 1e-2
    with pytest.raises(ValueError, match="do not consist of whole ones"):
        PDE.coarsened(frames, (5, 4, 3))
