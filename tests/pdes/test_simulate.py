"""What every solver keeps to, whatever its equation."""

import math

import numpy as np
import pytest
import torch

from factformer import Field, simulate
from factformer.config import Config
from factformer.data.generate.plan import problem_at
from factformer.errors import UserError
from factformer.pdes import PDE, Semilinear, Settings, check_finite, find_pde
from solver_cases import all_pdes, given, simulated, start

OTHER_VALUES = {
    "kolmogorov_flow": {
        "reynolds": 300.0,
        "forcing_wavenumber": 4,
        "drag": 0.3,
        "dt": 0.01,
        "integrator": "crank_nicolson_heun",
    },
    "isotropic_turbulence": {
        "viscosity": 0.02,
        "forcing": False,
        "forcing_radius": 2.0,
        "dt": 0.01,
        "pressure": "static",
    },
    "smoke_buoyancy": {"viscosity": 0.01, "buoyancy": 0.3, "dt": 0.25, "velocity_points": "cells"},
    "darcy_flow": {"source": 2.0, "face_mean": "harmonic", "points": "cells", "tolerance": 1e-3},
    "advection_diffusion": {"velocity": 2.0, "viscosity": 0.1, "extent": 1.0},
    "burgers": {"viscosity": 0.1, "extent": 1.0, "dt": 0.025},
    "kuramoto_sivashinsky": {"extent": 20.0, "biharmonic": False, "dt": 0.25},
    "korteweg_de_vries": {"extent": 30.0, "dt": 0.01},
    "fisher_kpp": {"viscosity": 0.1, "rate": 2.0, "extent": 1.0, "dt": 0.125},
    "gray_scott": {
        "diffusivity_a": 4e-5,
        "diffusivity_b": 2e-5,
        "feed": 0.03,
        "kill": 0.062,
        "extent": 1.0,
        "dt": 2.0,
    },
    "swift_hohenberg": {"rate": 0.5, "quadratic": 0.0, "extent": 30.0, "dt": 0.25},
    "cahn_hilliard": {"diffusivity": 0.02, "interface": 0.01, "extent": 3.0, "dt": 0.125},
    "vlasov_poisson": {"extent": 10.0, "v_max": 5.0, "content": "departure", "dt": 0.25},
    "navier_stokes": {"viscosity": 1e-3, "dt": 0.01, "integrator": "crank_nicolson_heun"},
    "obstacle_flow": {"viscosity": 0.02, "stream": 0.8, "penalisation": 0.01, "extent": 6.0, "dt": 1e-3},
}

PDES = pytest.mark.parametrize("pde", all_pdes(), ids=lambda pde: pde.name)


@PDES
def test_every_parameter_is_used(pde: PDE) -> None:
    """A change of any one changes the answer; a new parameter must come with another value here."""
    others = OTHER_VALUES[pde.name]
    assert set(others) == set(pde.parameters.model_fields)
    initial = start(pde, count=1)
    if pde.name == "kuramoto_sivashinsky":  # on one axis both fourth derivatives are the same
        initial = initial[:, :, None] * initial[:, None]
    count = None if pde.problem(16).steady else 3
    known = given(pde, tuple(initial.shape[1:-1])) if pde.conditions else {}
    answer = simulate(pde.name, initial, count, **known)
    for name, value in others.items():
        assert not torch.equal(simulate(pde.name, initial, count, **known, **{name: value}), answer), name


@PDES
def test_presets_fit_the_problem(pde: PDE) -> None:
    assert {"paper", "small", "tiny"} <= set(pde.presets)
    for preset in pde.presets.values():
        assert set(preset.num_trajectories) == {"train", "valid", "test"}
        Settings.parse(pde, preset.parameters)
        problem = problem_at(pde, preset, preset.resolution)
        assert preset.frame_dt == problem.frame_dt
        assert preset.num_dropped * preset.frame_dt == pytest.approx(preset.warmup)
        assert preset.num_frames >= 1
        pde.choose_initial(preset.initial)
        grid = problem_at(pde, preset, preset.simulation_resolution).grid
        if grid.shape != problem.grid.shape:
            frames = torch.zeros(1, 1, *grid.shape, problem.num_state_channels)
            stored = pde.downsample(frames, problem.grid.shape, preset.downsampling)
            assert stored.shape[2:-1] == problem.grid.shape


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"frame_dt": float("inf")}, "finite, got 26 and inf"),
        ({"num_frames": 2.5}, "whole number"),
        ({"frame_dt": "soon"}, "frame_dt a number"),
        ({"device": "cuda:x"}, "unknown device"),
        ({"device": "meta"}, "unknown device"),
        ({"device": "cuda:77"}, "asked for, but there"),
    ],
)
def test_options_that_cannot_be_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        simulate("kolmogorov_flow", torch.zeros(1, 16, 16, 1), **options)


@pytest.mark.parametrize(
    ("initial", "message"),
    [(torch.zeros(1, 16, 16, 1, dtype=torch.complex64), "complex"), ([[1.0, 2.0], [3.0]], "no array of numbers")],
)
def test_starts_that_are_no_real_arrays_are_named(initial: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        simulate("kolmogorov_flow", initial)


def test_a_masked_array_is_no_start() -> None:
    values = start(find_pde("burgers"), count=1).numpy()
    masked = np.ma.masked_array(values, mask=values > 0.5)
    with pytest.raises(UserError, match="burgers: the initial state is masked in places; fill these"):
        simulate("burgers", masked, 2, 0.1)
    assert torch.equal(
        simulate("burgers", np.ma.masked_array(values), 2, 0.1), simulate("burgers", torch.tensor(values), 2, 0.1)
    )


@pytest.mark.parametrize(
    ("name", "parameter", "values"),
    [
        ("vlasov_poisson", "v_max", [4.0, 5.0]),
        ("obstacle_flow", "stream", [1.0, 2.0]),
        ("obstacle_flow", "penalisation", [0.01, 0.02]),
        ("kuramoto_sivashinsky", "biharmonic", [True, False]),
    ],
)
def test_a_list_for_a_parameter_that_all_share_is_named_as_a_tensor_is(name: str, parameter: str, values: list) -> None:
    pde = find_pde(name)
    for given_values in (values, tuple(values), np.array(values), torch.tensor(values)):
        with pytest.raises(UserError, match=f"{name}: {parameter} takes one value for all trajectories"):
            simulated(pde, start(pde), 2, 0.1, **{parameter: given_values})


class Weights(Config):
    extent: float = 1.0
    weights: tuple[float, ...] = (0.0,)


def test_a_parameter_that_is_a_list_takes_one() -> None:
    class Decay(Semilinear):
        name = "decay"
        parameters = Weights
        dimensions = (1,)
        state = (Field("height"),)

        def linear(self, modes, parameters):
            return modes.laplacian * 0 - sum(parameters.weights)

    found = simulate(Decay(), torch.ones(1, 4, 1, dtype=torch.float64), 2, 1.0, weights=[0.5, 0.25])
    torch.testing.assert_close(found[:, 1], torch.full((1, 4, 1), math.exp(-0.75), dtype=torch.float64))


@pytest.mark.parametrize("values", [torch.tensor([[200.0], [300.0], [400.0]]), [[0.1]], [torch.ones(2)] * 3])
def test_parameters_in_a_table_are_named(values: object) -> None:
    with pytest.raises(UserError, match="reynolds must be one number, or 3 in a row: one per trajectory"):
        simulate("kolmogorov_flow", start(find_pde("kolmogorov_flow"), count=3), 2, 0.01, reynolds=values)


def test_an_unknown_problem_lists_the_choices() -> None:
    with pytest.raises(UserError, match="kolmogorov_flow"):
        simulate("kolmogorow_flow", torch.zeros(1, 8, 8, 1))


def test_a_blow_up_is_named_by_trajectory() -> None:
    pde = find_pde("kolmogorov_flow")
    initial = start(pde, count=3)
    initial[1] *= 1e4
    with pytest.raises(UserError, match=r"blew up .* in trajectory 1 of 3"):
        simulate(pde.name, initial, 4, 0.1, dt=0.1)


def test_blow_ups_can_be_called_by_seed() -> None:
    frames = torch.zeros(3, 4, 2, 2, 1)
    check_finite("x", frames)
    frames[2, 1, 0, 0] = torch.inf
    with pytest.raises(UserError, match="from frame 1 on in trajectory seed 9 of 3"):
        check_finite("x", frames, ["seed 7", "seed 8", "seed 9"])


def test_a_list_or_array_is_a_valid_start() -> None:
    initial = start(find_pde("darcy_flow"), count=1)
    expected = simulate("darcy_flow", initial)
    assert torch.equal(simulate("darcy_flow", initial.numpy()), expected)
    assert torch.equal(simulate("darcy_flow", initial.tolist(), dtype=torch.float64), expected)
    torch.testing.assert_close(simulate("darcy_flow", initial.numpy()[:, ::-1]), expected.flip(2))


def test_a_part_that_the_equation_does_not_have_is_named() -> None:
    with pytest.raises(UserError, match="burgers has no mask; leave it out"):
        simulate("burgers", torch.ones(1, 16, 1), 2, 0.1, mask=torch.ones(1, 16, dtype=torch.bool))
