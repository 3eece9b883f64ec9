"""The surrogate: shapes, sizes, switches, checks, roll-out, compile, checkpointing."""

import inspect
import math
import subprocess
import sys

import pytest
import torch

from factformer import Field, Grid, Problem, build_surrogate, metrics, rollout
from factformer.data.normalization import Normalizer
from factformer.errors import NonFinite, UserError

SMALL = {"dim": 16, "depth": 2, "heads": 2, "head_dim": 8, "kernel_dim": 8}


VORTICITY = (Field("vorticity"),)


def problem(shape=(8, 9), periodic=True, fields=VORTICITY, context=3, **options):
    grid = Grid(shape, 1.0, periodic)
    boundary = "periodic" if periodic else "zero"
    return Problem("test", grid, fields, num_context_frames=context, horizon=6, boundary=boundary, **options)


def frames(problem, batch=2, seed=0):
    shape = (batch, problem.num_context_frames, *problem.grid.shape, problem.num_state_channels)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(8,), (7, 8), (5, 4, 6), (3, 4, 3, 2)])
@pytest.mark.parametrize("periodic", [True, False])
def test_shapes_for_any_number_of_axes(shape, periodic):
    p = problem(shape, periodic, (Field("p"), Field("u", 2)))
    surrogate = build_surrogate(p, marching_steps=3, **SMALL)
    for steps in (1, 3):
        assert surrogate(frames(p, 1), steps).shape == (1, steps, *shape, 3)


def test_every_parameter_learns():
    p = problem(periodic=False, fields=(Field("p"), Field("u", 2)))
    surrogate = build_surrogate(p, marching_steps=2, **SMALL)
    prediction = surrogate(frames(p), 2)
    metrics.loss(prediction, torch.randn_like(prediction), p.state_slices).backward()
    for name, parameter in surrogate.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize("block", ["boundary_block", "positions", "attention", "marching.mlp", "layer"])
def test_removing_any_block_changes_the_output(block, monkeypatch):
    p = problem(periodic=False)
    surrogate = build_surrogate(p, marching_steps=1, **SMALL)
    x, before = frames(p), surrogate(frames(p), 1)
    layer = surrogate.backbone.layers[1]
    if block == "boundary_block":
        monkeypatch.setattr(surrogate.boundary_block.last, "forward", lambda z, *rest: torch.zeros(*z.shape[:-1], 8))
    elif block == "positions":
        monkeypatch.setattr(layer.positions, "forward", lambda grid: torch.zeros(*grid.shape, 16))
    elif block == "attention":
        monkeypatch.setattr(layer.attention, "add_to", lambda u, encoding, *rest: u + encoding)
    elif block == "marching.mlp":
        monkeypatch.setattr(surrogate.marching.mlp, "forward", torch.zeros_like)
    else:
        surrogate.backbone.layers = surrogate.backbone.layers[:1]
    assert (surrogate(x, 1) - before).abs().max() > 1e-4


def paper_problem(name):
    if name == "kolmogorov":
        grid = Grid((64, 64), 2 * math.pi, True)
        return Problem(name, grid, (Field("vorticity"),), num_context_frames=10, horizon=16)
    if name == "turbulence":
        fields = (Field("pressure"), Field("velocity", 3))
        return Problem(name, Grid((60,) * 3, 2 * math.pi, True), fields, num_context_frames=10, horizon=10)
    fields = (Field("density"), Field("velocity", 3))
    grid = Grid((64,) * 3, 8.0, False, "cells")
    return Problem(name, grid, fields, num_context_frames=4, horizon=16, boundary="zero")


@pytest.mark.parametrize(
    ("name", "options", "steps", "millions"),
    [
        ("kolmogorov", {}, 4, 3.5),
        ("turbulence", {"heads": 6, "kernel_dim": 192}, 2, 5.1),
        ("smoke", {"heads": 6, "kernel_dim": 192, "depth": 3}, 4, 4.6),
    ],
)
def test_sizes_are_the_paper_s(name, options, steps, millions):
    with torch.device("meta"):
        surrogate = build_surrogate(paper_problem(name), marching_steps=steps, **options)
    assert surrogate.num_parameters == pytest.approx(millions * 1e6, rel=0.03)


def test_physical_units_in_and_out():
    """Scaling the data and the statistics together scales the prediction and nothing else."""
    p = problem()
    torch.manual_seed(0)
    plain = build_surrogate(
        p,
        normalizer=Normalizer(
            context_mean=[0.5], context_std=[2.0], state_mean=[0.5], state_std=[2.0], increment_std=[0.3]
        ),
        **SMALL,
    )
    torch.manual_seed(0)
    scaled = build_surrogate(
        p,
        normalizer=Normalizer(
            context_mean=[50.0], context_std=[200.0], state_mean=[50.0], state_std=[200.0], increment_std=[30.0]
        ),
        **SMALL,
    )
    x = frames(p)
    assert torch.allclose(scaled(100 * x, 2), 100 * plain(x, 2), rtol=1e-4, atol=1e-3)


def test_frames_of_any_number_format_are_taken():
    p = problem()
    surrogate = build_surrogate(p, **SMALL)
    expected = surrogate(frames(p), 1)
    assert torch.equal(surrogate(frames(p).double(), 1), expected)
    assert surrogate.double()(frames(p), 1).dtype == torch.float64


def test_residual_predicts_the_increment():
    p = problem()
    surrogate = build_surrogate(
        p,
        residual=True,
        normalizer=Normalizer(
            context_mean=[0.0], context_std=[1.0], state_mean=[0.0], state_std=[1.0], increment_std=[0.25]
        ),
        **SMALL,
    )
    with torch.no_grad():
        surrogate.decoder.project.weight.zero_()
        surrogate.decoder.project.bias.fill_(2.0)
    x = frames(p)
    assert torch.allclose(surrogate(x, 3), (x[:, -1:] + 0.5).expand(-1, 3, -1, -1, -1))


def test_a_roll_out_that_overflows_does_not_blame_the_input():
    p = problem()
    surrogate = build_surrogate(p, **SMALL)
    surrogate.normalizer.state_std.fill_(float("inf"))
    predicted = rollout(surrogate, frames(p), 3, steps_per_call=1)
    assert not next(predicted).isfinite().all()
    with pytest.raises(NonFinite, match="left the finite numbers by frame 1") as caught:
        next(predicted)
    assert (caught.value.frame, caught.value.samples) == (1, tuple(range(len(frames(p)))))


def test_rollout_refuses_complex_numbers():
    p = problem()
    with pytest.raises(UserError, match="complex numbers"):
        next(rollout(build_surrogate(p, **SMALL), frames(p).numpy() * 1j, 1))


def test_rollout_feeds_predictions_back_and_keeps_gradients():
    p = problem(context=3)
    surrogate = build_surrogate(p, marching_steps=2, **SMALL)
    x = frames(p)
    result = torch.stack(list(rollout(surrogate, x, 5)), dim=1)
    assert result.shape == (2, 5, 8, 9, 1)
    first = surrogate(x, 2)
    second = surrogate(torch.cat([x[:, 2:], first], 1), 2)
    third = surrogate(torch.cat([first[:, 1:], second], 1), 1)
    assert torch.equal(result, torch.cat([first, second, third], 1))
    assert result[:, -1].requires_grad
    one = list(rollout(surrogate, x, 2, steps_per_call=1))
    assert torch.equal(one[1], surrogate(torch.cat([x[:, 1:], one[0][:, None]], 1), 1)[:, 0])


def test_a_rollout_of_a_finished_surrogate_keeps_gradients_only_where_they_are_asked_for():
    p = problem(context=3)
    surrogate = build_surrogate(p, marching_steps=2, **SMALL).eval()
    x = frames(p)
    for frame in rollout(surrogate, x, 3):
        assert not frame.requires_grad
        assert torch.is_grad_enabled(), "the caller's own mode must not change between two frames"
    start = x.clone().requires_grad_()
    *_, last = rollout(surrogate, start, 3)
    last.sum().backward()
    assert bool(start.grad.ne(0).any())
    with torch.no_grad():
        assert not any(frame.requires_grad for frame in rollout(surrogate, start, 3))


def test_other_resolutions_of_the_same_box():
    p = problem((8, 8))
    surrogate = build_surrogate(p, **SMALL)
    assert surrogate(torch.randn(1, 3, 12, 10, 1), 2).shape == (1, 2, 12, 10, 1)


def test_gradient_checkpointing_gives_the_same_gradients():
    p = problem()
    gradients = []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        surrogate = build_surrogate(p, checkpointing=checkpointing, **SMALL)
        surrogate(frames(p), 2).square().sum().backward()
        gradients.append([q.grad for q in surrogate.parameters()])
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(*gradients, strict=True))


def test_bfloat16_autocast_stays_close():
    p = problem((16, 16))
    surrogate = build_surrogate(p, **SMALL)
    x = frames(p)
    exact = surrogate(x, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = surrogate(x, 4)
    assert ((result - exact).norm() / exact.norm()).item() < 3e-2


COMPILE = """
import torch
from factformer import Field, Grid, Problem, build_surrogate
from factformer.batch import Batch
problem = Problem("test", Grid((6, 5), 1.0, False), (Field("a"),), num_context_frames=3, horizon=6, boundary="zero")
surrogate = build_surrogate(problem, dim=16, depth=2, heads=2, head_dim=8, kernel_dim=8)
frames = torch.randn(2, 3, 6, 5, 1)
expected = surrogate(frames, 2)
compiled = torch.compile(surrogate.predict, backend="aot_eager", fullgraph=True)
for _ in range(2):
    result = compiled(Batch(frames), 2, problem.grid)
    assert torch.allclose(result, expected, atol=1e-5)
result.sum().backward()
print("agrees")
"""


def test_compiles_whole_and_agrees():
    """In a process of its own: the run-time shape checks of the tests are not part of the graph."""
    done = subprocess.run([sys.executable, "-c", COMPILE], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "agrees", done.stderr[-2000:]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda x: (x[..., :0], 1), "expected 1 channels: vorticity"),
        (lambda x: (x[:, :2], 1), "expected 3 context frames, got 2"),
        (lambda x: (x[:, :, 0], 1), "got a tensor of shape"),
        (lambda x: (x * float("nan"), 1), "NaN or infinite values"),
        (lambda x: (x, 5), "built for 1 to 4"),
        (lambda x: (x, 0), "built for 1 to 4"),
        (lambda x: (x, 1, Grid(8, 1.0, True)), "2 axes, got a grid of 1"),
    ],
)
def test_bad_input_is_named(make, words):
    p = problem()
    surrogate = build_surrogate(p, **SMALL)
    with pytest.raises(ValueError, match=words):
        surrogate(*make(frames(p)))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": "factformr"}, "did you mean 'factformer'"),
        ({"haeds": 3}, "did you mean 'model.heads'"),
        ({"dim": 20}, "20 channels do not divide into 8"),
        ({"dim": 15}, "even number of channels"),
        ({"kernel_dim": 7}, "kernel_dim must be even"),
        ({"marching_steps": 0}, "marching_steps must be at least 1"),
        ({"depth": 0}, "greater than or equal to 1"),
    ],
)
def test_bad_options_are_named(options, words):
    with pytest.raises(ValueError, match=words):
        build_surrogate(problem(), **{**SMALL, **options})


def test_a_roll_out_takes_a_whole_number_of_frames():
    p = problem()
    plain = inspect.unwrap(rollout)  # without the check of types that tests run under
    with pytest.raises(UserError, match=r"whole number of frames, got 2\.5"):
        next(plain(build_surrogate(p, **SMALL), frames(p), 2.5))


KNOWN = Problem(
    "channel", Grid((8, 6), 1.0, True), (Field("u"),), static=(Field("depth"),), forcing=(Field("wind"),),
    parameters=("reynolds", "slope"), num_context_frames=2,
)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"static": {"depth": torch.full((2, 8, 6), math.nan)}}, r"static 'depth' holds NaN .* \(samples \[0, 1\]\)"),
        ({"forcing": {"wind": torch.full((2, 5, 8, 6), math.inf)}}, "forcing 'wind' holds NaN or infinite values"),
        ({"parameters": {"reynolds": 1.0, "slope": math.nan}}, "parameter 'slope' holds NaN or infinite values"),
        ({"parameters": {"reynolds": math.inf, "slope": 0.0}}, "parameter 'reynolds' holds NaN or infinite values"),
        ({"parameters": {"reynold": 1.0, "slope": 0.0}}, "must be given for reynolds, slope; got reynold, slope"),
        ({"parameters": torch.ones(2)}, r"expected parameters \(batch, 2\): reynolds, slope; got shape \(2,\)"),
        ({"parameters": torch.tensor(1.0)}, r"expected parameters \(batch, 2\): reynolds, slope; got shape \(\)"),
    ],
)
def test_a_bad_part_of_a_roll_out_is_named(changes, words, caplog):
    surrogate = build_surrogate(KNOWN, marching_steps=1, dim=8, depth=1, heads=2, head_dim=4, kernel_dim=4).eval()
    given = {
        "static": {"depth": torch.ones(2, 8, 6)},
        "forcing": {"wind": torch.ones(2, 5, 8, 6)},
        "parameters": {"reynolds": 1.0, "slope": 0.0},
    }
    with pytest.raises(UserError, match=words):
        next(rollout(surrogate, torch.ones(2, 2, 8, 6, 1), 3, **{**given, **changes}))
    assert not caplog.messages, "one line, not a warning as well"


def test_frames_of_true_and_false_are_numbers():
    problem = Problem("phase", Grid((8, 6), 1.0, True), (Field("u"),), num_context_frames=1)
    surrogate = build_surrogate(problem, marching_steps=1, dim=8, depth=1, heads=2, head_dim=4, kernel_dim=4).eval()
    frames = torch.rand(2, 1, 8, 6, 1) > 0.5
    assert torch.equal(next(rollout(surrogate, frames.numpy(), 1)), next(rollout(surrogate, frames.float(), 1)))


def test_parts_that_the_problem_does_not_have_are_named():
    surrogate = build_surrogate(problem(context=2), marching_steps=1, dim=8, depth=1, heads=2, head_dim=4, kernel_dim=4)
    context = torch.ones(1, 2, 8, 9, 1)
    with pytest.raises(UserError, match="this problem has no parameters: leave out reynolds"):
        next(rollout(surrogate, context, 1, parameters={"reynolds": 1.0}))
    with pytest.raises(UserError, match="this problem has no static fields: leave out depth"):
        next(rollout(surrogate, context, 1, static={"depth": torch.ones(1, 8, 9)}))
