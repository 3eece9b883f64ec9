"""Forcing of the predicted frames reaches the call that predicts them, and no frame before its own."""

import math
from dataclasses import replace

import pytest
import torch
from telling import error_when_told

from factformer import Field, Grid, Problem, catalog, rollout
from factformer.batch import Batch
from factformer.engine import StageExecution
from factformer.surrogate import Surrogate, build_surrogate
from small_models import small_sizes

PROBLEM = Problem(
    "channel", Grid((8, 6), 1.0, True), (Field("u", 2),), forcing=(Field("inflow"),), num_context_frames=2, horizon=4
)


def small(model: str, problem: Problem = PROBLEM, **options) -> Surrogate:
    sizes = small_sizes(model, depth=1)
    torch.manual_seed(0)
    return build_surrogate(problem, model, marching_steps=3, **sizes, **options).eval()


def batch(num_frames: int) -> Batch:
    generator = torch.Generator().manual_seed(1)
    context = torch.randn(2, 2, 8, 6, 2, generator=generator)
    return Batch(context, forcing=torch.randn(2, 2 + num_frames, 8, 6, 1, generator=generator))


def changed(given: Batch, frame: int) -> Batch:
    forcing = given.forcing.clone()
    forcing[:, frame] += 1
    return given._replace(forcing=forcing)


@pytest.mark.parametrize("model", catalog.names("models"))
def test_forcing_acts_from_its_own_frame_on(model):
    surrogate, given = small(model), batch(5)
    with torch.no_grad():
        expected = surrogate(given)
        for frame in range(5):
            found = surrogate(changed(given, frame))
            first = max(0, frame - 2)  # the first predicted frame that it can change
            assert torch.equal(found[:, :first], expected[:, :first]), frame
            assert not torch.allclose(found[:, first:], expected[:, first:]), frame
        assert torch.equal(surrogate(changed(given, 5)), expected), "beyond the frames that were asked for"
        assert torch.equal(surrogate(batch(5), 2), expected[:, :2])


def test_a_roll_out_of_several_calls_gives_each_its_forcing():
    surrogate, given = small("factformer"), batch(7)
    with torch.no_grad():
        whole = torch.stack(list(rollout(surrogate, given, 7)), dim=1)
        for frame in range(2, 9):
            found = torch.stack(list(rollout(surrogate, changed(given, frame), 7)), dim=1)
            assert torch.equal(found[:, : frame - 2], whole[:, : frame - 2])
            assert not torch.allclose(found[:, frame - 2], whole[:, frame - 2])


def test_every_call_of_a_roll_out_sees_batches_of_one_shape():
    surrogate, shapes = small("factformer"), []
    surrogate.implementation = lambda network, given, *rest: (
        shapes.append(given.forcing.shape[1]),
        network.plain(given, *rest),
    )[1]
    with torch.no_grad():
        list(rollout(surrogate, batch(9), 9))
    assert shapes == [5, 5, 5], "a recorded graph is of one shape"


def test_forcing_is_normalised_by_statistics_of_its_own():
    from factformer.data import ArrayDataset

    frames = torch.randn(3, 6, 8, 6, 2)
    forcing = 1000 + 50 * torch.randn(3, 6, 8, 6, 1)
    normalizer = ArrayDataset(frames, PROBLEM, forcing=forcing).normalizer()
    assert float(normalizer.forcing_mean) == pytest.approx(1000, rel=0.01)
    surrogate = small("factformer", normalizer=normalizer)
    given = Batch(frames[:, :2], forcing=forcing[:, :5])
    seen = surrogate.marching_forcing(given, 3, PROBLEM.grid)
    assert seen.shape == (3, 3, 8, 6, 1)
    assert abs(float(seen.mean())) < 0.2 and float(seen.std()) == pytest.approx(1, abs=0.1)


def test_patches_take_forcing_along():
    surrogate, given = small("factformer", patch=2), batch(3)
    with torch.no_grad():
        expected = surrogate(given)
        found = surrogate(changed(given, 4))
    assert torch.equal(found[:, :2], expected[:, :2]) and not torch.allclose(found[:, 2], expected[:, 2])


def test_fused_marching_takes_forcing(monkeypatch):
    monkeypatch.setenv("FACTFORMER_FUSED", "force")
    for problem in (PROBLEM, replace(PROBLEM, forcing=())):
        surrogate = _wide(problem)
        given = batch(3) if problem.forcing else Batch(batch(3).context)
        z = torch.randn(2, 8, 6, 64)
        forcing = surrogate.marching_forcing(given, 3, problem.grid)
        choice, _ = StageExecution("march_decode").choice(
            surrogate.marching, z, 3, surrogate.decoder, problem.grid, forcing
        )
        assert choice == "fused"


def _wide(problem: Problem) -> Surrogate:
    return build_surrogate(problem, "factformer", marching_steps=3, dim=64, depth=1, heads=2, head_dim=16, kernel_dim=8)


def test_a_forced_oscillator_needs_the_forcing_to_come():
    """∂u/∂t = f(x, t): the next frame follows from the forcing alone, which one surrogate is not told."""
    generator = torch.Generator().manual_seed(0)
    grid = Grid(16, 2 * math.pi, True)
    x, count, frames = grid.axis(0).float(), 24, 9
    amplitude = torch.randn(count, frames, 1, generator=generator)
    forcing = amplitude * torch.sin(x) + torch.randn(count, frames, 1, generator=generator) * torch.cos(x)
    state = torch.cumsum(forcing, dim=1)[..., None]

    told, untold = (
        error_when_told("forcing", known, state, grid, num_training=16, updates=60, depth=1)
        for known in ({"heating": forcing}, {})
    )
    assert told < 0.4 * untold, (told, untold)
