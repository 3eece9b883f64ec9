"""What the processes of a test of cut periodic fields do: transforms and solvers, whole and cut.

``python pencil_cases.py RENDEZVOUS RANK SIZE [few]``: the first process prints what differs as JSON; with ``few``,
on some grids and one cut of each.
"""

import itertools
import json
import math
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from factformer.numerics.pencil_traffic import sent_by_transform
from factformer.numerics.pencils import Pencils, PeriodicPart
from factformer.numerics.random_fields import hermitian_noise, uniform_modes
from factformer.numerics.semilinear import cutoff_for
from factformer.numerics.spectral import Spectrum, full_cutoff, padded_shape, resample, two_thirds_cutoff
from factformer.pdes import find_pde, solve

SHAPES = [(12, 10), (13, 11), (9, 14), (9, 8, 11), (12, 10, 14), (7, 13, 9), (6, 5, 4, 7)]
EQUATIONS = [
    ("kolmogorov_flow", (25, 22), {"forcing_wavenumber": 5, "reynolds": 100.0}),
    ("kolmogorov_flow", (24, 27), {"reynolds": [50.0, 200.0], "forcing_wavenumber": [4, 7], "drag": 0.2}),
    ("kolmogorov_flow", (24, 27), {"integrator": "crank_nicolson_heun"}),
    ("navier_stokes", (15, 18), {"viscosity": [1e-3, 1e-4]}),
    ("isotropic_turbulence", (11, 12, 9), {"dt": 0.01}),
    ("isotropic_turbulence", (8, 9, 10), {"pressure": "static", "viscosity": [0.01, 0.02], "dt": 0.01}),
    ("burgers", (17, 14), {"viscosity": [0.1, 0.2]}),
    ("burgers", (9, 10, 11), {"extent": [5.0, 6.0]}),
    ("kuramoto_sivashinsky", (17, 16), {"extent": 20.0}),
    ("kuramoto_sivashinsky", (10, 9, 8), {"extent": 12.0, "biharmonic": False}),
    ("advection_diffusion", (13, 12), {"velocity": [1.0, 2.0]}),
    ("gray_scott", (17, 20), {}),
    ("cahn_hilliard", (31, 30), {"interface": [0.02, 0.03]}),
    ("fisher_kpp", (16, 13), {"viscosity": 0.1}),
    ("swift_hohenberg", (9, 10, 12), {"extent": 12.0}),
]


def all_cuts(num_axes, size):
    """All ways to cut a grid for so many processes; the last axis stays whole."""
    counts = itertools.product(*[range(1, size + 1)] * (num_axes - 1))
    return [(*parts, 1) for parts in counts if math.prod(parts) == size]


def middle_cut(num_axes, size):
    """One of them, which cuts several axes where that can be."""
    found = all_cuts(num_axes, size)
    return found[len(found) // 2 : len(found) // 2 + 1]


def pencils_for(cut):
    return Pencils(init_device_mesh("cpu", cut, mesh_dim_names=[f"axis{m}" for m in range(len(cut))]))


def generators():
    return [torch.Generator().manual_seed(seed) for seed in (3, 4)]


def difference(ours, theirs):
    """Relative to the largest value, over all processes; parts may be empty."""
    assert ours.shape == theirs.shape, (ours.shape, theirs.shape)
    scale = max(float(theirs.abs().max()), 1e-30) if theirs.numel() else 1.0
    largest = torch.tensor(float((ours - theirs).abs().max()) / scale if theirs.numel() else 0.0)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    return float(largest)


def points_of(pencils, values, shape):
    return values[(..., *pencils.points(shape))]


def transforms(shape, cut, kind, dtype):
    """Transforms there and back, on the grid and on more points, symmetry and sums, against those of whole fields."""
    cutoff = {"full": full_cutoff, "two thirds": two_thirds_cutoff}[kind](shape)
    extent = [1.0 + m for m in range(len(shape))]
    pencils = pencils_for(cut)
    whole = Spectrum(extent, cutoff, dtype=dtype)
    part = Spectrum(extent, cutoff, dtype=dtype, pencils=pencils)
    values = torch.randn(2, 3, *shape, generator=generators()[0], dtype=torch.float64).to(dtype)
    expected = whole.coefficients(values)
    found = part.coefficients(points_of(pencils, values, shape), shape)
    finer = padded_shape(cutoff)
    results = {
        "coefficients": (found, part.held(expected)),
        "values": (part.values(found, shape), points_of(pencils, whole.values(expected, shape), shape)),
        "on more points": (part.values(found, finer), points_of(pencils, whole.values(expected, finer), finer)),
        "from more points": (part.coefficients(part.values(found, finer), finer), part.held(expected)),
        "mean of a product": (part.mean_product(found, found), whole.mean_product(expected, expected)),
        "gradient": (part.derivative(1) * found, part.held(whole.derivative(1) * expected)),
        "squared": (part.squared, part.held(whole.squared)),
        "mean": (part.is_mean.long(), part.held(whole.is_mean).long()),
    }
    for average in (True, False):
        skew = whole.coefficients(values) * (1 + 2j)
        mirrored = part.mirrored(part.held(skew), average=average)
        results[f"mirrored, {average}"] = (mirrored, part.held(whole.mirrored(skew, average=average)))
    coarse = tuple(max(2, size - 3) for size in shape)
    grid = PeriodicPart(find_pde("burgers").grid(shape), pencils) if len(shape) < 4 else None
    if grid is not None:
        fewer = points_of(pencils, resample(values, len(shape), coarse), coarse)
        results["resampled"] = (resample(points_of(pencils, values, shape), len(shape), coarse, grid), fewer)
    tolerance = 1e-13 if dtype == torch.float64 else 1e-5
    errors = {name: difference(*pair) for name, pair in results.items()}
    return {name: error for name, error in errors.items() if not error <= tolerance}


def against_plain_transforms(shape, cut):
    """Coefficients of a part against `torch.fft.rfftn`, which knows nothing of this package."""
    pencils, cutoff = pencils_for(cut), full_cutoff(shape)
    values = torch.randn(shape, generator=generators()[0], dtype=torch.float64)
    part = Spectrum([1.0] * len(shape), cutoff, pencils=pencils)
    found = part.coefficients(points_of(pencils, values, shape), shape)
    expected = torch.fft.rfftn(values, norm="forward")
    indices = torch.meshgrid(*[index.flatten() for index in part.indices], indexing="ij")
    error = difference(found, expected[indices])
    count = torch.tensor(float(found.numel()))
    dist.all_reduce(count)
    assert count == math.prod(Spectrum([1.0] * len(shape), cutoff).shape), "every mode is held once"
    return {} if error <= 1e-13 else {"rfftn": error}


def noise(shape, cut):
    """Draws of a part have the bits that they have in the whole."""
    cutoff = full_cutoff(shape)
    part = Spectrum([1.0] * len(shape), cutoff, pencils=pencils_for(cut))
    assert torch.equal(
        uniform_modes(cutoff, 3, generators(), part.ranges), part.held(uniform_modes(cutoff, 3, generators()))
    )
    ours = hermitian_noise(cutoff, generators()[0], part.ranges)
    assert torch.equal(ours, part.held(hermitian_noise(cutoff, generators()[0])))


def solved(name, shape, parameters, cut, dtype, num_frames=4):
    """Starts and frames of a cut grid against those of a whole one."""
    equation, pencils = find_pde(name), pencils_for(cut)
    shared = {key: value for key, value in parameters.items() if not isinstance(value, list)}
    each = {key: torch.tensor(value).double() for key, value in parameters.items() if isinstance(value, list)}
    settings = equation.parameters.parse(shared).model_copy(update=each)
    whole = equation.problem(shape, equation.parameters.parse(shared)).grid
    grid = PeriodicPart(whole, pencils)
    kinds = {"dtype": dtype, "device": "cpu"}
    start = equation.sample_initial(whole, generators(), **kinds)
    own = equation.sample_initial(grid, generators(), **kinds)
    # Nyquist modes, which random starts do not have
    rough = 1e-3 * torch.randn(start.shape, generator=generators()[0], dtype=torch.float64).to(dtype)
    cut_of = (slice(None), *pencils.points(shape), slice(None))
    steps = 12 * (getattr(settings, "dt", None) or 1 / 128)
    frames = zip(
        solve(equation, start + rough, num_frames, steps, settings),
        solve(equation, own + rough[cut_of], num_frames, steps, settings, grid=grid),
        strict=True,
    )
    errors = {"start": difference(own, start[cut_of])}
    for index, (theirs, ours) in enumerate(frames):
        first = theirs if index == 0 else first
        errors[f"frame {index}"] = difference(ours, theirs[cut_of])
    tolerance = 1e-10 if dtype == torch.float64 else 1e-4
    assert float((theirs - first).abs().max()) > 0, "nothing happens"
    return {name: error for name, error in errors.items() if not error <= tolerance}


def bytes_sent(name, shape, parameters, cut, per_step, points, cutoff):
    """Counted by wrapping the collective, and by formula, for one step of a solver."""
    equation, pencils, counted = find_pde(name), pencils_for(cut), []
    settings = equation.parameters.parse(parameters)
    grid = PeriodicPart(equation.problem(shape, settings).grid, pencils)
    start = equation.sample_initial(grid, generators(), dtype=torch.float32, device="cpu")
    exchange = dist.all_to_all_single

    def watched(received, given, coming, sent, group):
        counted.append((sum(sent) - sent[dist.get_rank(group)]) * given[0].numel() * given.element_size())
        return exchange(received, given, coming, sent, group=group)

    totals = []
    dist.all_to_all_single = watched
    for steps in (1, 3):
        counted.clear()
        list(solve(equation, start, 2, steps * settings.dt, settings, grid=grid))
        totals.append(sum(counted))
    dist.all_to_all_single = exchange
    to_modes, to_points = sent_by_transform(points, cutoff, cut, pencils.place)
    formula = 8 * len(start) * (per_step[0] * to_modes + per_step[1] * to_points)
    assert (totals[1] - totals[0]) == 2 * formula, (name, cut, totals, formula)
    return formula


def main(rendezvous, rank, size, *flags):
    dist.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=size, timeout=timedelta(seconds=120)
    )
    found = {}
    shapes, equations, cuts = SHAPES, EQUATIONS, all_cuts
    if "few" in flags:
        shapes, equations, cuts = SHAPES[1:4:2], EQUATIONS[1:10:2], middle_cut
    for shape in shapes:
        for cut in cuts(len(shape), size):
            name = f"{'x'.join(map(str, shape))} over {'x'.join(map(str, cut))}"
            for kind, dtype in (("full", torch.float64), ("two thirds", torch.float64), ("two thirds", torch.float32)):
                found[f"{name}, {kind}, {dtype}"] = transforms(shape, cut, kind, dtype)
            found[f"{name}, torch"] = against_plain_transforms(shape, cut)
            noise(shape, cut)
    for name, shape, parameters in equations:
        for cut in cuts(len(shape), size):
            words = f"{name} {shape} {parameters} over {cut}"
            found[words] = solved(name, shape, parameters, cut, torch.float64)
    found["float32"] = solved(*EQUATIONS[4], all_cuts(3, size)[0], torch.float32)
    for cut in cuts(2, size):
        shape = (25, 22)
        flow = {"forcing_wavenumber": 5, "dt": 0.01}
        bytes_sent("kolmogorov_flow", shape, flow, cut, (8, 8), shape, two_thirds_cutoff(shape))
        bytes_sent("burgers", shape, {}, cut, (8, 24), shape, cutoff_for(2, shape))
        bytes_sent("gray_scott", shape, {}, cut, (8, 8), shape, cutoff_for(3, shape))
    for cut in cuts(3, size):
        shape = (11, 12, 9)
        cutoff = full_cutoff(shape)
        bytes_sent("isotropic_turbulence", shape, {}, cut, (12, 24), padded_shape(cutoff), cutoff)
    if rank == 0:
        print(json.dumps({name: errors for name, errors in found.items() if errors}))
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
