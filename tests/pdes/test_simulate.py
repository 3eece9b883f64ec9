"""What every solver keeps to, whatever its equation."""

import pytest
import torch
from solver_cases import all_pdes, relative, resolution, start

from factformer import simulate
from factformer.errors import UserError
from factformer.pdes import PDE, check_finite, find_pde

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
}

PDES = pytest.mark.parametrize("pde", all_pdes(), ids=lambda pde: pde.name)
MOVING = pytest.mark.parametrize("pde", [p for p in all_pdes() if not p.problem(16).steady], ids=lambda p: p.name)


@PDES
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shapes_dtype_and_frame_zero(pde: PDE, dtype: torch.dtype) -> None:
    initial = start(pde, dtype=dtype)
    problem = pde.problem(resolution(pde))
    count = 1 if problem.steady else 3
    frames = simulate(pde.name, initial, count)
    assert frames.shape == (2, count, *problem.grid.shape, problem.num_state_channels)
    assert frames.dtype == dtype
    assert torch.isfinite(frames).all()
    if not problem.steady:
        tolerance = 1e-12 if dtype == torch.float64 else 1e-5
        assert any(
            torch.allclose(frames[:, 0, ..., c : c + initial.shape[-1]], initial, atol=tolerance)
            for c in range(problem.num_state_channels)
        )


@PDES
def test_single_and_double_precision_agree(pde: PDE) -> None:
    initial = start(pde, dtype=torch.float32)
    count = None if pde.problem(16).steady else 4
    single, double = (simulate(pde.name, initial, count, dtype=dtype) for dtype in (torch.float32, torch.float64))
    assert relative(single.double(), double) < 1e-5


@PDES
def test_a_trajectory_does_not_depend_on_the_batch(pde: PDE) -> None:
    together, alone = start(pde, count=4), start(pde, count=1, first=2)
    assert torch.equal(together[2:3], alone)
    count = 1 if pde.problem(16).steady else 3
    assert torch.equal(simulate(pde.name, together, count)[2:3], simulate(pde.name, alone, count))


@PDES
def test_every_parameter_is_used(pde: PDE) -> None:
    """A change of any one changes the answer; a new parameter must come with another value here."""
    others = OTHER_VALUES[pde.name]
    assert set(others) == set(pde.parameters.model_fields)
    initial = start(pde, count=1)
    count = None if pde.problem(16).steady else 3
    answer = simulate(pde.name, initial, count)
    for name, value in others.items():
        assert not torch.equal(simulate(pde.name, initial, count, **{name: value}), answer), name


@MOVING
def test_frames_are_hit_exactly_whatever_the_solver_step(pde: PDE) -> None:
    """One frame at 2h is the second frame at h, with the same steps in between."""
    initial = start(pde, count=1)
    interval = pde.problem(16).frame_dt
    settings = {"dt": interval / 3}
    fine = simulate(pde.name, initial, 5, interval, **settings)
    coarse = simulate(pde.name, initial, 3, 2 * interval, **settings)
    torch.testing.assert_close(fine[:, ::2], coarse, rtol=1e-9, atol=1e-10)
    # a step that does not divide the interval is shortened, never overshot
    odd = simulate(pde.name, initial, 2, interval, dt=interval / 2.5)
    torch.testing.assert_close(odd, simulate(pde.name, initial, 2, interval, dt=interval / 3), rtol=1e-12, atol=1e-12)


@MOVING
def test_defaults_are_those_of_the_problem(pde: PDE) -> None:
    problem = pde.problem(resolution(pde))
    frames = simulate(pde.name, start(pde, count=1, dtype=torch.float32))
    assert frames.shape[1] == problem.num_context_frames + problem.horizon


@PDES
def test_presets_fit_the_problem(pde: PDE) -> None:
    assert {"paper", "small", "tiny"} <= set(pde.presets)
    for preset in pde.presets.values():
        assert set(preset.num_trajectories) == {"train", "valid", "test"}
        pde.parameters.parse(preset.parameters)
        problem = pde.problem(preset.resolution)
        assert preset.frame_dt == problem.frame_dt
        assert preset.num_dropped * preset.frame_dt == pytest.approx(preset.warmup)
        assert preset.num_frames >= 1
        pde.choose_initial(preset.initial)
        grid = pde.problem(preset.simulation_resolution).grid
        if grid.shape != problem.grid.shape:
            frames = torch.zeros(1, 1, *grid.shape, problem.num_state_channels)
            stored = pde.downsample(frames, problem.grid.shape, preset.downsampling)
            assert stored.shape[2:-1] == problem.grid.shape


@PDES
def test_mistakes_are_named(pde: PDE) -> None:
    initial = start(pde, count=2)
    misspelt = {next(iter(pde.parameters.model_fields))[:-1] + "x": 1}
    with pytest.raises(UserError, match="did you mean"):
        simulate(pde.name, initial, **misspelt)
    with pytest.raises(UserError, match="shape"):
        simulate(pde.name, initial[..., 0])
    with pytest.raises(UserError, match="shape"):
        simulate(pde.name, torch.cat([initial, initial], dim=-1))
    broken = initial.clone()
    broken[1].flatten()[3] = torch.nan
    with pytest.raises(UserError, match="trajectory 1 holds NaN"):
        simulate(pde.name, broken)
    with pytest.raises(UserError, match="float32 and float64"):
        simulate(pde.name, initial, dtype=torch.float16)
    with pytest.raises(UserError, match="num_frames"):
        simulate(pde.name, initial, 0)
    with pytest.raises(UserError, match="empty"):
        simulate(pde.name, initial[:0])
    with pytest.raises(UserError, match="Choices: "):
        pde.choose_initial("nonsense")


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
