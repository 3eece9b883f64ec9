"""The solvers' kernels under Triton's interpreter, against the plain steps in float64."""

# ruff: noqa: RUF005 (Triton's language has no starred tuples)

import math

import pytest
import torch

import triton_interpreter  # noqa: F401

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402

from factformer import simulate  # noqa: E402
from factformer.engine import solver_points  # noqa: E402
from factformer.errors import UserError  # noqa: E402
from factformer.kernels.solvers import FACTORS, cross, from_planes, squares, to_planes  # noqa: E402
from factformer.kernels.solvers.fourier import narrow_index, to_narrow, to_wide, wide_index  # noqa: E402
from factformer.kernels.solvers.lines import Lines  # noqa: E402
from factformer.numerics.projection import fourier_projection  # noqa: E402
from factformer.numerics.spectral import Spectrum  # noqa: E402
from factformer.numerics.timestepping import Stage, etdrk4_stages, staged  # noqa: E402
from factformer.pdes.isotropic_turbulence import Parameters, _momentum  # noqa: E402

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _few_large_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter pays by the program."""
    monkeypatch.setattr(squares, "SQUARE", (16, 4))
    monkeypatch.setattr(cross, "ROWS", (256, 4))


@triton.jit
def _there_and_back(
    source,
    there,
    back,
    table,
    LINE: tl.constexpr,
):
    S: tl.constexpr = LINE.S
    R: tl.constexpr = LINE.R
    LIST: tl.constexpr = LINE.LIST
    WIDE_LIST: tl.constexpr = LINE.WIDE_LIST
    column = tl.arange(0, R)[None, :]
    re = ()
    im = ()
    for j in tl.static_range(LIST):
        place = narrow_index(j, LINE) * R + column
        re = re + (tl.load(source + place),)
        im = im + (tl.load(source + S * R + place),)
    re, im = to_wide(re, im, table, 1.0, LINE)
    for j in tl.static_range(WIDE_LIST):
        place = wide_index(j, LINE) * R + column
        tl.store(there + place, re[j])
        tl.store(there + S * R + place, im[j])
    re, im = to_narrow(re, im, table, -1.0, LINE)
    for j in tl.static_range(LIST):
        place = narrow_index(j, LINE) * R + column
        tl.store(back + place, re[j])
        tl.store(back + S * R + place, im[j])


@pytest.mark.parametrize("size", FACTORS)
def test_lines_are_transformed_to_round_off(size: int) -> None:
    lines = Lines(size, CPU)
    source = torch.randn(2, size, 4)
    there, back = torch.empty_like(source), torch.empty_like(source)
    _there_and_back[(1,)](source, there, back, lines.table, LINE=lines.taken(4))
    exact = torch.fft.ifft(torch.complex(*source.double()), dim=0, norm="forward")
    assert (torch.complex(*there.double()) - exact).abs().max() < 3e-7 * exact.abs().max()
    assert (back / size - source).abs().max() < 2e-6


def both_spectra(extent: list[float], cutoff: list[int]) -> tuple[Spectrum, Spectrum]:
    return Spectrum(extent, cutoff), Spectrum(extent, cutoff, dtype=torch.float32)


def random_state(spectrum: Spectrum, *leading: int) -> torch.Tensor:
    values = torch.randn(*leading, *(2 * k + 2 for k in spectrum.cutoff), dtype=torch.float64)
    return spectrum.coefficients(values)


@pytest.mark.parametrize(("points", "cutoff"), [((16, 16), [5, 5]), ((16, 64), [3, 21]), ((64, 16), [20, 4])])
def test_a_step_with_the_square_of_a_pair(points: tuple[int, int], cutoff: list[int]) -> None:
    """Any symbols of two real fields and of their products, and an integrator with weights for every mode."""
    exact, single = both_spectra([2 * math.pi, 3.0], cutoff)
    k1, k2 = exact.wavenumbers
    u1, u2 = ((symbol + 0 * exact.squared) / (1 + exact.squared) for symbol in (1j * k2 + 0.5 * k1**2, -1j * k1))
    weights = (k1 * k2, 2 * k1**2 + 3 * k2**2)
    constant = random_state(exact)

    def term(state: torch.Tensor) -> torch.Tensor:
        a, b = (exact.values(symbol * state, points) for symbol in (u1, u2))
        first, second = exact.coefficients(b * b - a * a), exact.coefficients(a * b)
        return weights[0] * first + weights[1] * second + constant

    stages = etdrk4_stages(-0.1 * exact.squared, 1e-2)
    state = random_state(exact, 2)
    step = squares.square_stepper(single, points, (u1, u2), weights, constant, stages)
    result = from_planes(step(to_planes(state, 2).float()), 2)
    expected = staged(stages, term)(state)
    assert (result - expected).norm() < 5e-7 * expected.norm()
    assert (expected - state).norm() > 0.01 * state.norm()


@pytest.mark.parametrize(("cutoff", "viscosity"), [([5, 4, 5], [0.05]), ([2, 5, 3], [0.05, 0.5])])
def test_a_step_with_the_cross_product(cutoff: list[int], viscosity: list[float]) -> None:
    """One viscosity, or one for each sample."""
    exact, single = both_spectra([2 * math.pi, 3.0, 5.0], cutoff)
    values = torch.tensor(viscosity, dtype=torch.float64)
    state = fourier_projection(random_state(exact, len(values), 3), exact)
    rate, _ = _momentum(exact, Parameters().model_copy(update={"viscosity": values}))
    one, dt = torch.tensor(1.0, dtype=torch.float64), torch.tensor(0.02, dtype=torch.float64)
    stages = [Stage(0, one, dt)]
    given = values if len(values) > 1 else viscosity[0]
    result = from_planes(cross.cross_stepper(single, (16, 16, 16), given, stages)(to_planes(state, 3).float()), 3)
    expected = staged(stages, rate)(state)
    assert (result - expected).norm() < 5e-7 * expected.norm()
    assert (expected - state).norm() > 0.01 * state.norm()


def test_each_sample_of_a_pair_s_square_may_have_its_own_rates_and_force() -> None:
    exact, single = both_spectra([2 * math.pi, 3.0], [5, 4])
    k1, k2 = exact.wavenumbers
    symbols = ((1j * k2 + 0 * k1) / (1 + exact.squared), (-1j * k1 + 0 * k2) / (1 + exact.squared))
    weights = (k1 * k2, k1**2 - k2**2)
    constants = random_state(exact, 3)
    rates = -torch.tensor([0.1, 0.3, 1.0], dtype=torch.float64).reshape(-1, 1, 1) * exact.squared
    state = to_planes(random_state(exact, 3), 2).float()
    own = squares.square_stepper(single, (16, 16), symbols, weights, constants, etdrk4_stages(rates, 1e-2))(state)
    for row in range(3):
        stages = etdrk4_stages(rates[row], 1e-2)
        alone = squares.square_stepper(single, (16, 16), symbols, weights, constants[row], stages)
        assert torch.equal(own[row : row + 1], alone(state[row : row + 1]))
    assert not torch.equal(own[:1], alone(state[:1]))


def test_a_broken_trajectory_is_alone() -> None:
    _, single = both_spectra([1.0, 1.0], [5, 5])
    k1, k2 = single.wavenumbers
    symbols = (1j * k2 + 0 * k1, 1j * k1 + 0 * k2)
    stages = etdrk4_stages(-single.squared, 1e-4)
    step = squares.square_stepper(single, (16, 16), symbols, (k1, k2), torch.zeros(11, 6), stages[:1])
    state = torch.randn(2, 2, 11, 6)
    whole = step(state)
    state[1, 0, 3, 2] = torch.nan
    broken = step(state)
    assert torch.equal(broken[0], whole[0])
    assert broken[1].isnan().all()


@pytest.mark.parametrize(
    ("name", "size", "channels", "settings"),
    [
        ("kolmogorov_flow", 16, 1, {"dt": 1 / 64, "forcing_wavenumber": 2}),
        pytest.param("isotropic_turbulence", 12, 3, {"dt": 1 / 32, "viscosity": 0.05}, marks=pytest.mark.slow),
    ],
)
def test_solvers_give_the_same_with_kernels(
    name: str, size: int, channels: int, settings: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    num_axes = 2 if channels == 1 else 3
    initial = torch.randn(1, *[size] * num_axes, channels)
    plain = simulate(name, initial.double(), 2, 1 / 32, **settings)
    monkeypatch.setenv("FACTFORMER_FUSED", "force")
    fused = simulate(name, initial, 2, 1 / 32, **settings)
    assert (fused - plain).norm() < 2e-6 * plain.norm()
    monkeypatch.setenv("FACTFORMER_FUSED", "off")
    assert not torch.equal(fused, simulate(name, initial, 2, 1 / 32, **settings))  # the kernels were at work


def test_the_kernels_solve_flows_of_different_parameters_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    initial = torch.randn(2, 16, 16, 1)
    settings = {"reynolds": torch.tensor([50.0, 200.0]), "forcing_wavenumber": [2, 3], "dt": 1 / 64}
    plain = simulate("kolmogorov_flow", initial.double(), 2, 1 / 32, **settings)
    monkeypatch.setenv("FACTFORMER_FUSED", "force")
    fused = simulate("kolmogorov_flow", initial, 2, 1 / 32, **settings)
    assert (fused - plain).norm() < 2e-6 * plain.norm()


def test_kernels_are_chosen_by_device_type_and_size(monkeypatch: pytest.MonkeyPatch) -> None:
    exact, single = both_spectra([1.0] * 3, [29] * 3)
    assert solver_points(single) is None
    monkeypatch.setenv("FACTFORMER_FUSED", "force")
    assert solver_points(single) == (96, 96, 96)
    assert solver_points(both_spectra([1.0] * 2, [170, 170])[1]) == (512, 512)
    assert solver_points(exact) is None
    assert solver_points(both_spectra([1.0] * 2, [170, 85])[1]) is None  # 512 points would be twice as many as needed
    assert solver_points(both_spectra([1.0], [200])[1]) is None
    monkeypatch.setenv("FACTFORMER_FUSED", "maybe")
    with pytest.raises(UserError, match="FACTFORMER_FUSED"):
        solver_points(single)
