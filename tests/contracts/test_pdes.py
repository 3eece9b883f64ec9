"""What every equation must do: those of the catalog, and the one of docs/how-to/add-a-pde.md as it stands there."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from factformer import Problem
from factformer.data import generate, open_dataset
from factformer.errors import UserError
from factformer.pdes import PDE
from solver_cases import (
    all_pdes,
    given,
    num_frames,
    page_pde,
    relative,
    resolution,
    simulated,
    solution,
    solve,
    start,
)

EVERY = [*all_pdes(), page_pde()]


def fixed(pde: PDE) -> list[str]:
    """Parameters that are the same for all trajectories."""
    return [name for name in pde.parameters.model_fields if name not in pde.varying]


PDES = pytest.mark.parametrize("pde", EVERY, ids=lambda pde: pde.name)
MOVING = pytest.mark.parametrize("pde", [pde for pde in EVERY if not pde.steady], ids=lambda pde: pde.name)


@PDES
def test_the_problem_round_trips(pde: PDE) -> None:
    problem = pde.problem(resolution(pde))
    assert problem.name == pde.name
    assert Problem.from_dict(problem.to_dict()) == problem
    assert pde.problem(problem.grid.shape) == problem
    with pytest.raises(UserError, match=f"{pde.name} has (. or )*. axes, got the shape"):
        pde.problem((8,) * 5)


@PDES
def test_any_shape_of_the_grid_can_be_asked_for(pde: PDE) -> None:
    shape = tuple(range(9, 9 + pde.dimensions[0]))
    grid = pde.problem(shape).grid
    assert grid.shape == shape
    assert grid.extent == pde.problem(16).grid.extent


@PDES
def test_parameters_have_defaults_and_round_trip(pde: PDE) -> None:
    values = pde.parameters.parse({})
    assert pde.parameters.parse(values.model_dump(mode="json")) == values
    assert {*pde.varying, *pde.symmetry_parameters} <= set(pde.parameters.model_fields)


@PDES
def test_a_trajectory_alone_has_the_bits_it_has_in_a_batch(pde: PDE) -> None:
    initial, count = start(pde, dtype=torch.float32), num_frames(pde, 3)
    together = simulated(pde, initial, count, device="cpu")
    assert torch.equal(simulated(pde, initial[1:], count, device="cpu"), together[1:])


@PDES
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shapes_dtype_and_frame_zero(pde: PDE, dtype: torch.dtype) -> None:
    initial = start(pde, dtype=dtype)
    problem = pde.problem(resolution(pde))
    assert initial.shape == (2, *problem.grid.shape, pde.initial_channels(problem.grid.num_axes))
    assert initial.dtype == dtype and initial.device.type == "cpu"
    count = num_frames(pde, 3)
    frames = simulated(pde, initial, count, device="cpu")
    assert frames.shape == (2, count, *problem.grid.shape, problem.num_state_channels)
    assert frames.dtype == dtype and frames.device.type == "cpu"
    assert torch.isfinite(frames).all()
    if not pde.steady:
        tolerance = 1e-12 if dtype == torch.float64 else 1e-5
        assert any(
            torch.allclose(frames[:, 0, ..., c : c + initial.shape[-1]], initial, atol=tolerance)
            for c in range(problem.num_state_channels)
        )


@PDES
def test_single_and_double_precision_agree(pde: PDE) -> None:
    initial = start(pde, dtype=torch.float32)
    single, double = (
        simulated(pde, initial, num_frames(pde, 4), dtype=dtype) for dtype in (torch.float32, torch.float64)
    )
    assert relative(single.double(), double) < 1e-5


@PDES
def test_a_trajectory_depends_on_its_seed_alone(pde: PDE) -> None:
    together, alone = start(pde, count=4), start(pde, count=1, first=2)
    assert torch.equal(together[2:3], alone)
    assert not torch.equal(together[2], together[3])
    count = num_frames(pde, 3)
    assert torch.equal(simulated(pde, together, count)[2:3], simulated(pde, alone, count))


@PDES
def test_the_start_is_left_as_it_was(pde: PDE) -> None:
    initial = start(pde)
    before = initial.clone()
    simulated(pde, initial, num_frames(pde, 3))
    assert torch.equal(initial, before)


@PDES
def test_a_varying_parameter_may_differ_between_trajectories(pde: PDE) -> None:
    initial, count = start(pde, count=3), num_frames(pde, 3)
    for name in pde.varying:
        value = getattr(pde.parameters.parse({}), name)
        each = torch.tensor([value, 1.25 * value, value], dtype=torch.float64)
        frames = simulated(pde, initial, count, **{name: each})
        for row, own in enumerate(each.tolist()):
            alone = simulated(pde, initial[row : row + 1], count, **{name: own})
            assert torch.equal(frames[row : row + 1], alone), (name, row)
        with pytest.raises(UserError, match=f"{name} has 2 values for 3 trajectories"):
            simulated(pde, initial, count, **{name: each[:2]})


@pytest.mark.parametrize("pde", [pde for pde in EVERY if fixed(pde)], ids=lambda pde: pde.name)
def test_a_parameter_that_cannot_vary_is_named(pde: PDE) -> None:
    name = fixed(pde)[0]
    with pytest.raises(UserError, match=f"{name} takes one value for all trajectories") as caught:
        simulated(pde, start(pde), **{name: torch.ones(2)})
    assert "\n" not in str(caught.value)


@MOVING
def test_frames_are_hit_exactly_whatever_the_solver_step(pde: PDE) -> None:
    """One frame at 2h is the second frame at h, with the same steps in between."""
    initial = start(pde, count=1)
    interval = pde.task.frame_dt
    stepped = "dt" in pde.parameters.model_fields  # otherwise every frame is exact

    def solved(num_frames: int, frame_dt: float, dt: float) -> torch.Tensor:
        return simulated(pde, initial, num_frames, frame_dt, **({"dt": dt} if stepped else {}))

    fine = solved(5, interval, interval / 3)
    coarse = solved(3, 2 * interval, interval / 3)
    torch.testing.assert_close(fine[:, ::2], coarse, rtol=1e-9, atol=1e-10)
    # a step that does not divide the interval is shortened, never overshot
    odd = solved(2, interval, interval / 2.5)
    torch.testing.assert_close(odd, solved(2, interval, interval / 3), rtol=1e-12, atol=1e-12)


@MOVING
def test_defaults_are_those_of_the_task(pde: PDE) -> None:
    frames = simulated(pde, start(pde, count=1, dtype=torch.float32))
    assert frames.shape[1] == pde.task.num_context_frames + pde.task.horizon


@PDES
def test_symmetries_carry_solutions_to_solutions(pde: PDE) -> None:
    grid = pde.problem(resolution(pde)).grid
    frames = solution(pde)
    maps = pde.symmetries(grid)
    assert maps
    for name, transform in maps.items():
        moved = transform(frames)
        assert not torch.allclose(moved, frames), name
        parts = {part: moved_part(transform, frames, values) for part, values in given(pde, grid.shape).items()}
        again = solve(pde, moved, **parts)
        torch.testing.assert_close(again, moved, rtol=1e-7, atol=1e-7, msg=lambda text, n=name: n + text)


def moved_part(transform: Callable[[Tensor], Tensor], frames: Tensor, values: Tensor) -> Tensor:
    """A mask moved as the first channel is, whose sign no symmetry turns where there is a mask."""
    whole = torch.zeros_like(frames[:1, :1])
    whole[0, 0, ..., 0] = values
    return transform(whole)[0, 0, ..., 0] > 0.5


@PDES
def test_mistakes_are_named(pde: PDE) -> None:
    initial = start(pde, count=2)
    misspelt = {next(iter(pde.parameters.model_fields))[:-1] + "x": 1}
    with pytest.raises(UserError, match="did you mean"):
        simulated(pde, initial, **misspelt)
    wrong = {next(iter(pde.parameters.model_fields)): "nonsense"}
    with pytest.raises(UserError, match="nonsense") as caught:
        simulated(pde, initial, **wrong)
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="shape"):
        simulated(pde, initial[..., 0])
    with pytest.raises(UserError, match="shape"):
        simulated(pde, torch.cat([initial, initial], dim=-1))
    broken = initial.clone()
    broken[1].flatten()[3] = torch.nan
    with pytest.raises(UserError, match="trajectory 1 holds NaN"):
        simulated(pde, broken)
    with pytest.raises(UserError, match="float32 and float64"):
        simulated(pde, initial, dtype=torch.float16)
    with pytest.raises(UserError, match="num_frames"):
        simulated(pde, initial, 0)
    with pytest.raises(UserError, match="empty"):
        simulated(pde, initial[:0])
    with pytest.raises(UserError, match="Choices: "):
        pde.choose_initial("nonsense")


def test_the_page_s_equation_is_stored_with_the_same_bits_in_any_batch(tmp_path) -> None:
    contents = set()
    for batch_size in (1, 2):
        out = tmp_path / str(batch_size)
        generate(page_pde(), out, preset="tiny", splits=["train"], trajectories=2, batch_size=batch_size)
        contents.add((out / "train.hdf5").read_bytes())
    assert len(contents) == 1
    assert open_dataset(out, "train").problem.grid.shape == (32, 32)
