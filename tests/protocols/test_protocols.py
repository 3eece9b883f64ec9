"""Protocols on a surrogate whose every prediction and gradient is known in closed form."""

import math

import pytest
import torch
from torch import nn

from factformer import metrics
from factformer.batch import Batch, Window
from factformer.errors import UserError
from factformer.grid import Grid
from factformer.pdes import find_pde
from factformer.problem import Field, Problem
from factformer.protocols import build_protocol, migrated_protocol, parse_protocol
from factformer.protocols.latent_marching import marching_steps, pushforward_calls
from factformer.surrogate import Surrogate

CONTEXT = 2


class Growth(Surrogate):
    """Frame j after the context is ``a^j`` times its last frame."""

    def __init__(self, problem: Problem, factor: float, steps: int) -> None:
        nn.Module.__init__(self)
        self.problem = problem
        self.marching_steps = steps
        self.factor = nn.Parameter(torch.tensor(factor, dtype=torch.float64))
        self.calls: list[tuple[int, bool]] = []

    def forward(self, batch, num_steps=None, grid=None):
        frames = batch.seen
        self.calls.append((num_steps, torch.is_grad_enabled()))
        return torch.stack([frames[:, -1] * self.factor**j for j in range(1, num_steps + 1)], dim=1)


@pytest.fixture
def problem() -> Problem:
    return Problem("growth", Grid(4, 1.0, True), (Field("u"),), num_context_frames=CONTEXT, horizon=8)


def protocol(problem, name="latent_marching", **values):
    return build_protocol(parse_protocol({"name": name, **values}), problem)


def loss_of(protocol, surrogate, window, plan):
    return metrics.loss(*protocol.predict(surrogate, window, plan), protocol.problem.state_slices)


def window_of_ones(num_frames: int) -> Window:
    return Window(torch.ones(1, num_frames, 4, 1, dtype=torch.float64))


def test_pushforward_sends_gradients_through_the_last_call_only(problem):
    steps, pushed, a = 2, 2, 1.5
    latent = protocol(problem, marching_steps=steps, pushforward=pushed)
    surrogate = Growth(problem, a, steps)
    plan = {"marching_steps": 2, "pushforward": 2}
    loss = loss_of(latent, surrogate, window_of_ones(latent.window_length), plan)
    loss.backward()
    # The last call predicts c a and c a² with c = a⁴ from gradient-free calls, held against ones.
    c, errors = a**4, [a**4 * a - 1, a**4 * a**2 - 1]
    expected_loss = math.sqrt(sum(e * e for e in errors) / 2)
    expected_gradient = (errors[0] * c + errors[1] * c * 2 * a) / (2 * expected_loss)
    assert float(loss.detach()) == pytest.approx(expected_loss)
    assert float(surrogate.factor.grad) == pytest.approx(expected_gradient)
    assert surrogate.calls == [(2, False), (2, False), (2, True)]


def test_autoregressive_training_sends_gradients_through_all_calls(problem):
    unroll, a = 3, 1.2
    auto = protocol(problem, "autoregressive", unroll=unroll)
    surrogate = Growth(problem, a, 1)
    loss = loss_of(auto, surrogate, window_of_ones(auto.window_length), auto.plan(1, 0.0))
    loss.backward()
    expected = math.sqrt(sum((a**j - 1) ** 2 for j in (1, 2, 3)) / 3)
    gradient = sum((a**j - 1) * j * a ** (j - 1) for j in (1, 2, 3)) / (3 * expected)
    assert float(loss.detach()) == pytest.approx(expected)
    assert float(surrogate.factor.grad) == pytest.approx(gradient)
    assert surrogate.calls == [(1, True)] * unroll


def test_targets_are_the_frames_after_those_pushed_over(problem):
    latent = protocol(problem, marching_steps=2, pushforward=1)
    frames = torch.arange(6.0, dtype=torch.float64)[None, :, None, None].expand(1, 6, 4, 1).clone()
    surrogate = Growth(problem, 1.0, 2)
    prediction, target = latent.predict(surrogate, Window(frames), {"marching_steps": 2, "pushforward": 1})
    assert target[0, :, 0, 0].tolist() == [4.0, 5.0]
    assert prediction[0, :, 0, 0].tolist() == [1.0, 1.0]  # growth 1 repeats the last frame of context
    prediction, target = latent.predict(surrogate, Window(frames), {"marching_steps": 1, "pushforward": 0})
    assert target[0, :, 0, 0].tolist() == [2.0]


def test_windows_are_as_long_as_the_longest_update_needs(problem):
    assert protocol(problem, marching_steps=4, pushforward=2).window_length == CONTEXT + 12
    assert protocol(problem, "autoregressive", unroll=5).window_length == CONTEXT + 5


@pytest.mark.parametrize(("progress", "steps"), [(0.0, 1), (0.019, 1), (0.021, 2), (0.041, 3), (0.06, 4), (1.0, 4)])
def test_curriculum_grows_from_one_step_to_all(progress, steps):
    assert marching_steps(progress, 4, 0.06) == steps


def test_no_curriculum_marches_all_steps_at_once():
    assert marching_steps(0.0, 4, 0.0) == 4


def test_pushforward_begins_late_and_comes_every_third_update():
    calls = [pushforward_calls(update, update / 100, 2, 0.5, 3) for update in range(100)]
    assert calls == [2 if update >= 50 and update % 3 == 0 else 0 for update in range(100)]


def test_steady_problems_take_the_input_frame(problem):
    grid = Grid(4, 1.0, True)
    steady = Problem("map", grid, (Field("y"),), (Field("x"),), num_context_frames=0)
    config = parse_protocol({"name": "steady"})
    surrogate = Growth(steady, 3.0, 1)
    window = Window(torch.full((2, 1, 4, 1), 6.0), Batch(static=torch.full((2, 4, 1), 4.0)))
    loss = loss_of(build_protocol(config, steady), surrogate, window, {})
    assert float(loss.detach()) == pytest.approx(1.0)  # 12 predicted for 6
    with pytest.raises(UserError, match=r"protocol.name=steady"):
        build_protocol(parse_protocol({}), steady)
    with pytest.raises(UserError, match=r"evolves in time"):
        build_protocol(config, problem)


def test_a_steady_equation_gives_a_steady_problem():
    """Darcy flow once claimed a context frame and was refused as evolving in time."""
    darcy = find_pde("darcy_flow").problem(7)
    assert (darcy.steady, darcy.num_context_frames, darcy.horizon) == (True, 0, 1)
    assert build_protocol(parse_protocol({"name": "steady"}), darcy).window_length == 1


def test_an_unknown_protocol_lists_the_choices(problem):
    with pytest.raises(UserError, match=r"autoregressive, latent_marching, steady"):
        protocol(problem, "latent_march")


@pytest.mark.parametrize(
    ("given", "closest"),
    [
        ({"name": "autoregressive", "marching_steps": 2}, "unroll"),
        ({"name": "latent_marching", "unroll": 2}, "calls"),
        ({"name": "steady", "pushforward": 2}, "coarse"),
        ({"name": "autoregressive", "unrol": 2}, "did you mean 'protocol.unroll'"),
    ],
)
def test_a_key_that_a_protocol_does_not_read_is_an_error_that_names_the_protocol(given, closest):
    name, (_, key) = given["name"], given
    with pytest.raises(UserError, match=rf"unknown key 'protocol\.{key}'.*{closest}.*\(protocol\.name={name}\)"):
        parse_protocol(given)


def test_a_protocol_saved_by_the_first_edition_loses_what_it_never_read():
    saved = {
        "name": "autoregressive",
        "marching_steps": 4,
        "curriculum": 0.06,
        "pushforward": 2,
        "pushforward_from": 0.08,
        "pushforward_every": 3,
        "calls": 1,
        "calls_from": 0.0,
        "coarse": 1,
        "coarse_until": 0.7,
        "unroll": 12,
    }
    assert parse_protocol(migrated_protocol(saved)).model_dump() == {
        "name": "autoregressive",
        "stride": 1,
        "coarse": 1,
        "coarse_until": 0.7,
        "unroll": 12,
    }
    marching = parse_protocol(migrated_protocol({**saved, "name": "latent_marching"}))
    assert (marching.marching_steps, marching.pushforward) == (4, 2)
    with pytest.raises(UserError, match="no_such_key"):
        parse_protocol(migrated_protocol({**saved, "no_such_key": 1}))
