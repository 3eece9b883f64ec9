"""What every model of the catalog must do, on grids of one to four axes, even and odd, with walls or not."""

import copy
import json
import subprocess
import sys

import pytest
import torch

from factformer import catalog, metrics
from factformer.batch import Batch, Window
from factformer.bundle import load, save_bundle
from factformer.data.normalization import Normalizer, channel_counts
from factformer.errors import UserError
from factformer.grid import Grid
from factformer.nn.spectral_conv import SpectralConvolution
from factformer.problem import Field, Problem
from factformer.protocols import build_protocol, parse_protocol
from factformer.surrogate import Surrogate, build_surrogate, model_config
from factformer.training.loop.objective import Objective
from small_models import VARIANTS, named, small_sizes

MODELS = [*catalog.names("models"), *VARIANTS]


def flow(name: str, grid: Grid, boundary: str = "periodic") -> Problem:
    """Two field groups, two frames of context."""
    fields = (Field("pressure"), Field("velocity", grid.num_axes))
    return Problem(name, grid, fields, num_context_frames=2, horizon=4, boundary=boundary)


PROBLEMS = {
    problem.name: problem
    for problem in (
        flow("line_even", Grid(16, 6.28, True)),
        flow("line_odd", Grid(13, 1.0, False), "reflect"),
        flow("plane_even", Grid((12, 8), 6.28, True)),
        flow("plane_odd", Grid((9, 11), (1.0, 2.0), (True, False)), "zero"),
        flow("space_even", Grid((6, 4, 8), 1.0, False, "cells"), "zero"),
        flow("space_odd", Grid((5, 7, 3), 6.28, True)),
        Problem(
            "steady",
            Grid((9, 8), 1.0, False),
            (Field("solution"),),
            (Field("coefficient"),),
            num_context_frames=0,
            boundary="zero",
        ),
    )
}
EVERY = pytest.mark.parametrize("problem", PROBLEMS.values(), ids=list(PROBLEMS))
SOME = pytest.mark.parametrize(
    "problem", [PROBLEMS[name] for name in ("plane_odd", "space_odd")], ids=lambda problem: problem.name
)


@pytest.fixture(params=MODELS)
def model(request) -> str:
    return request.param


def small(model: str, problem: Problem, **options) -> Surrogate:
    sizes = small_sizes(model)
    counts = channel_counts(problem)
    levels = {kind: torch.linspace(0.5, 2, count).tolist() for kind, count in counts.items()}
    moments = {f"{kind}_{moment}": level for kind, level in levels.items() for moment in ("mean", "std")}
    normalizer = Normalizer(**moments, increment_std=levels["state"])
    return build_surrogate(
        problem, named(model), marching_steps=1 if problem.steady else 2, normalizer=normalizer, **sizes, **options
    )


def sample(problem: Problem, batch: int = 2, num_frames: int | None = None) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    frames = max(1, problem.num_context_frames) if num_frames is None else num_frames
    channels = problem.num_static_channels if problem.steady else problem.num_state_channels
    return torch.randn(batch, frames, *problem.grid.shape, channels, generator=generator)


@EVERY
def test_it_predicts_frames_on_the_grid(model, problem):
    surrogate = small(model, problem)
    steps = surrogate.marching_steps
    prediction = surrogate(sample(problem), steps)
    assert prediction.shape == (2, steps, *problem.grid.shape, problem.num_state_channels)
    assert prediction.isfinite().all()
    assert prediction.std() > 1e-3


@EVERY
def test_every_parameter_is_reached_by_a_finite_gradient(model, problem):
    surrogate = small(model, problem).double()
    prediction = surrogate(sample(problem).double())
    loss = metrics.loss(prediction, torch.randn_like(prediction), problem.state_slices)
    loss.backward()
    assert loss.isfinite()
    for name, parameter in surrogate.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 1e-9, name


@EVERY
def test_samples_of_a_batch_do_not_see_each_other(model, problem):
    surrogate = small(model, problem).double()
    frames = sample(problem, batch=3).double()
    alone = torch.cat([surrogate(frames[i : i + 1]) for i in range(3)])
    torch.testing.assert_close(surrogate(frames), alone, rtol=1e-9, atol=1e-9)


@EVERY
def test_other_sizes_of_the_grid_work_too(model, problem):
    surrogate = small(model, problem)
    finer = problem.with_grid(problem.grid.resample([2 * size - 1 for size in problem.grid.shape]))
    prediction = surrogate(sample(finer), 1)
    assert prediction.shape == (2, 1, *finer.grid.shape, problem.num_state_channels)
    assert prediction.isfinite().all()


@EVERY
def test_weights_and_configuration_make_the_same_model_again(model, problem):
    first = small(model, problem)
    config = catalog.find("models", named(model)).Config.parse(first.config.model_dump(mode="json"))
    assert config == first.config
    torch.manual_seed(99)
    second = build_surrogate(
        problem, config, marching_steps=first.marching_steps, normalizer=copy.deepcopy(first.normalizer)
    )
    frames = sample(problem)
    assert not torch.equal(first(frames), second(frames))
    second.load_state_dict(first.state_dict())
    assert torch.equal(first(frames), second(frames))


@EVERY
def test_a_bundle_gives_the_same_predictions(model, problem, tmp_path):
    surrogate = small(model, problem).eval()
    loaded = load(save_bundle(surrogate, tmp_path / "bundle", {"seed": 0}))
    frames = sample(problem)
    assert torch.equal(surrogate(frames), loaded(frames))
    assert loaded.problem == problem
    assert loaded.config == surrogate.config


@EVERY
def test_it_works_in_mixed_precision(model, problem):
    surrogate = small(model, problem)
    frames = sample(problem)
    exact = surrogate(frames)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = surrogate(frames)
        loss = metrics.loss(mixed, torch.ones_like(mixed), problem.state_slices)
    loss.backward()
    assert metrics.relative_l2(mixed.float(), exact).max() < 0.1
    for name, parameter in surrogate.named_parameters():
        assert parameter.dtype == torch.float32
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


@SOME
def test_recomputed_activations_give_the_same_gradients(model, problem):
    plain, checkpointed = small(model, problem), small(model, problem, checkpointing=True)
    checkpointed.load_state_dict(plain.state_dict())
    frames = sample(problem)
    for surrogate in (plain, checkpointed):
        surrogate.train()
        surrogate(frames).square().mean().backward()
    for (name, a), b in zip(plain.named_parameters(), checkpointed.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, msg=name)


@pytest.mark.parametrize("protocol", ["latent_marching", "autoregressive"])
@SOME
def test_an_update_lowers_the_loss_under_both_protocols(model, problem, protocol):
    torch.manual_seed(0)
    pushed = {"marching_steps": 2, "curriculum": 0, "pushforward_from": 0, "pushforward_every": 1}
    options = pushed if protocol == "latent_marching" else {}
    trained = build_protocol(parse_protocol({"name": protocol, **options}), problem)
    surrogate = small(model, problem)
    objective = Objective(surrogate, trained)
    window = Window(sample(problem, num_frames=trained.window_length))
    plan = trained.plan(update=1, progress=0.5)
    optimizer = torch.optim.SGD(surrogate.parameters(), lr=1e-3)
    before, _ = objective(window, plan)
    before.backward()
    torch.nn.utils.clip_grad_norm_(surrogate.parameters(), 1.0)
    optimizer.step()
    after, _ = objective(window, plan)
    assert after < before


def test_steady_problems_train(model):
    problem = PROBLEMS["steady"]
    protocol = build_protocol(parse_protocol({"name": "steady"}), problem)
    surrogate = small(model, problem)
    inputs = sample(problem)
    window = Window(torch.randn_like(inputs), Batch(static=inputs[:, 0]))
    loss, terms = Objective(surrogate, protocol)(window, protocol.plan(1, 0.0))
    loss.backward()
    assert loss.isfinite()
    assert list(terms) == ["solution"]


def test_four_axes_work(model):
    problem = flow("four", Grid((4, 3, 5, 4), 1.0, (True, False, True, False)), "zero")
    surrogate = small(model, problem)
    prediction = surrogate(sample(problem))
    prediction.square().mean().backward()
    assert prediction.shape == (2, 2, 4, 3, 5, 4, 5)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in surrogate.parameters())


def test_stretched_axes_work_or_are_refused_by_name(model):
    grid = Grid.from_axes([[0.0, 0.1, 0.3, 0.7, 1.0], torch.linspace(0, 1, 6)])
    problem = flow("stretched", grid, "reflect")
    surrogate = small(model, problem)
    if any(isinstance(module, SpectralConvolution) for module in surrogate.modules()):
        with pytest.raises(UserError, match="evenly spaced axes and axis 0 is not"):
            surrogate(sample(problem))
    else:
        assert surrogate(sample(problem)).isfinite().all()


COMPILE = """
import json
import sys

import torch

from factformer import Field, Grid, Problem, build_surrogate

problem = Problem("channel", Grid((8, 9), 1.0, (True, False)), (Field("u"),), boundary="zero")
backbone = build_surrogate(problem, sys.argv[1], **json.loads(sys.argv[2])).backbone
z = torch.randn(2, 8, 9, 16)
compiled = torch.compile(backbone, backend="aot_eager")(z, problem.grid)
compiled.square().mean().backward()
torch.testing.assert_close(compiled, backbone(z, problem.grid), rtol=1e-4, atol=1e-5)
"""


@pytest.mark.slow
def test_it_can_be_compiled(model):
    """In a process of its own: the compiler does not see through the run-time checks of shapes."""
    words = [sys.executable, "-c", COMPILE, named(model), json.dumps(small_sizes(model))]
    result = subprocess.run(words, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("model", catalog.names("models"))
def test_the_name_is_the_file_s(model):
    assert model_config(model).name == model
    assert catalog.find("models", model).Model.paper_optimizer in ("adam", "adamw")
