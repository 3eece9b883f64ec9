"""The semilinear equations: analytic solutions, measured order, one invariant each, parameters per trajectory."""

import math

import pytest
import torch
from pydantic import create_model

from factformer import Field, Grid, simulate
from factformer.config import Config
from factformer.errors import UserError
from factformer.numerics.random_fields import truncated_series
from factformer.pdes import find_pde
from factformer.pdes._common.semilinear import Semilinear
from solver_cases import SEMILINEAR, resolution

# a size that resolves the start, the step that is halved, and the time that passes
ORDERS = {
    "burgers": (48, 1 / 16, 1.0, {"viscosity": 0.1}),
    "cahn_hilliard": (32, 1 / 8, 2.0, {"interface": 0.05}),
    "fisher_kpp": (32, 1 / 4, 2.0, {"viscosity": 0.1}),
    "gray_scott": (32, 8.0, 64.0, {"diffusivity_a": 2e-4, "diffusivity_b": 1e-4}),
    "korteweg_de_vries": (64, 1 / 64, 0.5, {}),
    "kuramoto_sivashinsky": (64, 1 / 64, 1.0, {"extent": 30.0}),
    "swift_hohenberg": (32, 1 / 32, 1.0, {"extent": 12.0}),
}


def start(name: str, shape: tuple[int, ...], count: int = 1, **parameters: float) -> torch.Tensor:
    pde = find_pde(name)
    grid = pde.grid_of(shape, pde.parameters.parse(parameters))
    generators = [torch.Generator().manual_seed(number) for number in range(count)]
    return pde.sample_initial(grid, generators, dtype=torch.float64, device="cpu")


@pytest.mark.parametrize("name", SEMILINEAR)
def test_is_two_overrides(name):
    assert isinstance(find_pde(name), Semilinear)


def heat(parameters):
    class Heat(Semilinear):
        name = "heat"
        dimensions = (1,)
        state = (Field("temperature"),)

        def linear(self, modes, given):
            return 0.1 * modes.laplacian

    Heat.parameters = parameters
    return Heat


def test_arguments_of_the_overrides_may_have_any_name():
    pde = heat(create_model("Parameters", __base__=Config, extent=(float, 2 * math.pi)))()
    initial = torch.sin(pde.grid((16,)).axis(0).double()).reshape(1, 16, 1)
    after = simulate(pde, initial, 2, 1.0)[:, -1]
    torch.testing.assert_close(after, math.exp(-0.1) * initial, rtol=0, atol=1e-12)


def test_parameters_without_a_box_are_named():
    with pytest.raises(UserError, match="the parameters of the class Heat need `extent`"):
        heat(Config)()


@pytest.mark.parametrize("name", ORDERS)
def test_order_in_time_is_four(name):
    size, dt, time, parameters = ORDERS[name]
    initial = start(name, (size,) * min(find_pde(name).dimensions), **parameters)

    def final(step: float) -> torch.Tensor:
        return simulate(name, initial, 2, time, dt=step, **parameters)[:, -1]

    exact = final(dt / 16)
    coarse, fine = ((final(step) - exact).norm() for step in (dt, dt / 2))
    assert math.log2(coarse / fine) > 4 - 0.25


@pytest.mark.parametrize("num_axes", [1, 2, 3])
def test_advection_diffusion_is_exact(num_axes):
    shape = (24, 16, 12)[:num_axes]
    grid = Grid(shape, 2 * math.pi, periodic=True)
    place = sum(
        (m + 1) * grid.axis(m).double().reshape([-1 if axis == m else 1 for axis in range(num_axes)])
        for m in range(num_axes)
    )
    wavenumbers = torch.arange(1, num_axes + 1)
    time, velocity, viscosity = 0.7, 1.3, 0.05
    initial = torch.sin(place)[None, ..., None]
    found = simulate("advection_diffusion", initial, 2, time, velocity=velocity, viscosity=viscosity)
    decay = math.exp(-viscosity * float(wavenumbers.square().sum()) * time)
    truth = decay * torch.sin(place - velocity * float(wavenumbers.sum()) * time)
    torch.testing.assert_close(found[0, 1, ..., 0], truth, rtol=0, atol=1e-13)


def test_a_soliton_keeps_its_shape():
    """``u = c/2 sech²(√c (x - ct) / 2)``; the tails of a line of 20 are below 1e-8."""
    speed, size, extent, time = 4.0, 128, 20.0, 0.5
    x = torch.arange(size, dtype=torch.float64) * extent / size

    def wave(centre: float) -> torch.Tensor:
        distance = torch.remainder(x - centre + extent / 2, extent) - extent / 2
        return 0.5 * speed / torch.cosh(0.5 * math.sqrt(speed) * distance).square()

    found = simulate("korteweg_de_vries", wave(8.0)[None, :, None], 2, time)
    truth = wave(8.0 + speed * time)
    assert (found[0, 1, :, 0] - truth).norm() / truth.norm() < 1e-7


def test_burgers_follows_the_cole_hopf_solution():
    """``u = -2ν ∂(log φ)/∂x`` with ``φ`` a solution of the heat equation."""
    viscosity, size, time = 0.1, 64, 0.5
    x = torch.arange(size, dtype=torch.float64) * 2 * math.pi / size

    def velocity(t: float) -> torch.Tensor:
        decay = math.exp(-viscosity * t)
        return 2 * viscosity * decay * torch.sin(x) / (1.5 + decay * torch.cos(x))

    found = simulate("burgers", velocity(0.0)[None, :, None], 2, time, viscosity=viscosity)
    torch.testing.assert_close(found[0, 1, :, 0], velocity(time), rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["burgers", "korteweg_de_vries", "kuramoto_sivashinsky", "cahn_hilliard"])
def test_the_mean_stays(name):
    dimensions = 1 if 1 in find_pde(name).dimensions else 2
    initial = start(name, ({"cahn_hilliard": 128}.get(name, 48),) * dimensions) + 0.2
    found = simulate(name, initial, 5, 0.1)
    means = found.mean(tuple(range(2, found.ndim)))
    torch.testing.assert_close(means, means[:, :1].expand_as(means), rtol=0, atol=1e-13)


def test_kuramoto_sivashinsky_does_not_lift_the_front():
    found = simulate("kuramoto_sivashinsky", start("kuramoto_sivashinsky", (28, 28)), 3, 1.0)
    assert found.mean((2, 3, 4)).abs().max() < 1e-13


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_chaos_stays_bounded(dtype):
    """Over 150 units of time: round-off of the unstable long waves must not be carried by the linear terms alone."""
    initial = start("kuramoto_sivashinsky", (64,), extent=40.0).to(dtype)
    found = simulate("kuramoto_sivashinsky", initial, 16, 10.0, extent=40.0, dt=0.125)
    assert 1.0 < found[:, 5:].abs().amax() < 5.0


def test_patterns_come_to_rest():
    """Swift-Hohenberg over 60 units of time: modes that stand for no real field must not grow beside the pattern."""
    initial = start("swift_hohenberg", (24, 24), extent=20.0).float()
    found = simulate("swift_hohenberg", initial, 7, 10.0, extent=20.0, dt=0.125)
    assert 1.0 < found[:, -1].abs().amax() < 2.5
    assert (found[:, -1] - found[:, -2]).abs().amax() < 0.5


def test_korteweg_de_vries_keeps_its_energy():
    found = simulate("korteweg_de_vries", start("korteweg_de_vries", (96,)), 4, 0.25)
    energy = found.square().mean((2, 3))
    torch.testing.assert_close(energy, energy[:, :1].expand_as(energy), rtol=1e-7, atol=0)


def test_cahn_hilliard_lowers_its_free_energy():
    interface, size = 0.02, 48
    found = simulate("cahn_hilliard", start("cahn_hilliard", (size, size)), 9, 1.0, interface=interface)[..., 0]
    spacing = 2 * math.pi / size
    squares = sum(((found.roll(-1, m) - found) / spacing).square() for m in (2, 3))
    energy = (0.25 * (found.square() - 1).square() + 0.5 * interface * squares).mean((2, 3))
    assert (energy.diff(dim=1) < 0).all()


def test_swift_hohenberg_lowers_its_energy():
    rate, quadratic, size, extent = 0.7, 1.0, 32, 20.0
    initial = start("swift_hohenberg", (size, size), extent=extent)
    found = simulate("swift_hohenberg", initial, 9, 1.0, extent=extent)[..., 0]
    index = torch.fft.fftfreq(size, 1 / size, dtype=torch.float64) * 2 * math.pi / extent
    symbol = 1 - index[:, None].square() - index.square()
    bent = torch.fft.ifft2(symbol * torch.fft.fft2(found)).real
    energy = 0.5 * bent.square() - 0.5 * rate * found.square() - quadratic / 3 * found**3 + 0.25 * found**4
    assert (energy.mean((2, 3)).diff(dim=1) < 1e-12).all()


def test_fisher_kpp_rests_at_zero_and_one_and_grows_between():
    still = simulate("fisher_kpp", torch.tensor([0.0, 1.0]).double().reshape(2, 1, 1, 1).expand(2, 28, 28, 1), 3, 1.0)
    torch.testing.assert_close(still, still[:, :1].expand_as(still), rtol=0, atol=1e-14)
    uniform = simulate("fisher_kpp", torch.full((1, 40, 40, 1), 0.1, dtype=torch.float64), 2, 2.0, rate=1.5)
    logistic = 1 / (1 + 9 * math.exp(-1.5 * 2.0))
    assert uniform[0, 1].mean().item() == pytest.approx(logistic, rel=1e-6)


def test_gray_scott_rests_where_there_is_no_b():
    rest = torch.zeros(1, 16, 16, 2, dtype=torch.float64)
    rest[..., 0] = 1
    torch.testing.assert_close(simulate("gray_scott", rest, 3, 10.0), rest.unsqueeze(1).expand(1, 3, 16, 16, 2))


@pytest.mark.parametrize("name", SEMILINEAR)
def test_every_parameter_may_differ_between_trajectories(name):
    pde = find_pde(name)
    initial = start(name, pde.shape(resolution(pde)), count=2)
    defaults = pde.parameters()
    for parameter in pde.varying:
        values = [getattr(defaults, parameter), 1.25 * getattr(defaults, parameter)]
        both = simulate(name, initial, 3, 0.05, **{parameter: torch.tensor(values, dtype=torch.float64)})
        for row, value in enumerate(values):
            alone = simulate(name, initial[row : row + 1], 3, 0.05, **{parameter: value})
            torch.testing.assert_close(both[row : row + 1], alone, rtol=1e-12, atol=1e-12)


def test_parameters_per_trajectory_are_checked():
    initial = start("burgers", (16,), count=2)
    with pytest.raises(UserError, match="viscosity"):
        simulate("burgers", initial, 2, 0.1, viscosity=torch.tensor([0.1, -0.1]))
    with pytest.raises(UserError, match="3 values for 2 trajectories"):
        simulate("burgers", initial, 2, 0.1, viscosity=torch.tensor([0.1, 0.1, 0.1]))
    with pytest.raises(UserError, match="dt"):
        simulate("burgers", initial, 2, 0.1, dt=torch.tensor([0.1, 0.1]))


def test_a_truncated_series_is_alike_on_every_grid():
    values = [
        truncated_series(Grid((size, size), 1.0, periodic=True), torch.Generator().manual_seed(3)) for size in (16, 32)
    ]
    torch.testing.assert_close(values[0], values[1][::2, ::2], rtol=0, atol=1e-13)
    assert values[1].mean().abs() < 1e-14 and 0.9 < values[1].abs().max() <= 1


def test_round_off_does_not_grow_with_the_linear_term():
    """Waves of the chaotic front stay of order one; what the cut left behind as round-off grew without bound."""
    found = simulate("kuramoto_sivashinsky", start("kuramoto_sivashinsky", (64,)).float(), 5, 50.0, dt=1 / 8)
    assert 0.5 < found[:, -1].std() < 3
    assert found.abs().max() < 6
