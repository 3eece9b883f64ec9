"""One surrogate for several time steps: windows of every stride, each with its frame_dt, and any step between."""

import logging
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from small_waves import wave_data

from factformer import Field, Grid, Problem, fit, rollout, simulate
from factformer.batch import Batch
from factformer.bundle import load, save_bundle
from factformer.data.dataset import ArrayDataset
from factformer.data.layout import Contents
from factformer.data.windows import Windows
from factformer.data.writer import SplitWriter
from factformer.errors import UserError
from factformer.evaluation.accuracy import evaluate
from factformer.evaluation.run import evaluate_run
from factformer.prediction import predict_file
from factformer.surrogate import build_surrogate
from factformer.training.feed.feeding import ResidentFeed, StreamingFeed, Visits
from factformer.training.feed.steps import SteppedDataset

CPU = torch.device("cpu")
SIZES = {"model.dim": 16, "model.depth": 2, "model.heads": 2, "model.head_dim": 8, "model.kernel_dim": 8}


def test_every_stride_has_as_many_windows():
    windows = Windows(2, 12, 3, 1, (1, 2, 4))
    found: dict[int, set[int]] = {}
    for index in range(len(windows)):
        _, start = windows[index]
        apart = windows.frame_stride(index)
        assert list(range(12)[windows.frames(index)]) == [start, start + apart, start + 2 * apart]
        found.setdefault(apart, set()).add(start)
    assert len(windows) == 2 * 3 * 10
    assert found == {1: set(range(10)), 2: set(range(8)), 4: set(range(4))}, "every window that fits"
    with pytest.raises(UserError, match="3 frames that lie 6 apart does not fit"):
        Windows(2, 12, 3, 1, (1, 6))


@pytest.mark.parametrize("kind", [ResidentFeed, StreamingFeed])
@pytest.mark.parametrize("own", [False, True])
def test_feeds_tell_each_window_its_step(kind, own):
    dataset, _ = wave_data()
    if own:  # the data have such a parameter of their own
        problem = SteppedDataset(dataset).problem
        dataset = ArrayDataset(dataset.read(slice(None)), problem, parameters=torch.tensor([[0.1], [0.2], [0.3]]))
    stepped = SteppedDataset(dataset, strides=(1, 3))
    visits = Visits(Windows(3, 12, 4, 1, (1, 3)), 7, 4)
    batches = kind(stepped, visits, CPU).batches(1)
    seen = set()
    for update in (1, 2, 3):
        window = next(batches)
        for row, index in enumerate(visits.at(update)):
            trajectory, _ = visits.windows[index]
            apart = visits.windows.frame_stride(index)
            interval = torch.tensor([0.1, 0.2, 0.3])[trajectory] if own else torch.tensor(dataset.problem.frame_dt)
            assert torch.equal(window.known.parameters[row], (interval * apart)[None])
            assert torch.equal(window.frames[row], dataset.read([trajectory], visits.windows.frames(index))[0])
            seen.add(apart)
    batches.close()
    assert seen == {1, 3}


def test_statistics_of_the_step_are_those_of_all_strides():
    dataset, _ = wave_data()
    normalizer = SteppedDataset(dataset, strides=(1, 2, 16)).normalizer()
    dt = dataset.problem.frame_dt
    assert normalizer.parameters_min.tolist() == pytest.approx([dt])
    assert normalizer.parameters_max.tolist() == pytest.approx([16 * dt])
    assert normalizer.parameters_log.tolist() == [1.0]
    assert torch.equal(normalizer.state_std, dataset.normalizer().state_std)


def test_increments_grow_with_the_step():
    problem = Problem("wave", Grid(8, 1.0, True), (Field("u"),), parameters=("frame_dt",), frame_dt=0.1)
    surrogate = build_surrogate(
        problem, residual=True, marching_steps=1, dim=8, depth=1, heads=2, head_dim=4, kernel_dim=4
    )
    context = torch.randn(1, 1, 8, 1)
    with torch.no_grad():
        by_default = surrogate(Batch(context, parameters=torch.tensor([[0.1]]))) - context
        doubled = surrogate(Batch(context, parameters=torch.tensor([[0.2]]))) - context
        assert torch.equal(surrogate(context) - context, by_default), "the interval of the problem"
        (frame,) = rollout(surrogate, context, 1, frame_dt=0.2)
    torch.testing.assert_close(doubled, math.sqrt(2) * by_default)  # before training, the network does not see the step
    torch.testing.assert_close(frame - context[:, 0], doubled[:, 0])


def test_a_step_that_cannot_be_is_named():
    dataset, _ = wave_data()
    one_step = build_surrogate(dataset.problem, dim=8, depth=1, heads=2, head_dim=4, kernel_dim=4)
    context = dataset.batch([0]).context
    with pytest.raises(UserError, match=r"was trained for frames 0.2 apart alone: leave out frame_dt="):
        next(rollout(one_step, context, 1, frame_dt=0.4))
    several = build_surrogate(SteppedDataset(dataset).problem, dim=8, depth=1, heads=2, head_dim=4, kernel_dim=4)
    with pytest.raises(UserError, match="'frame_dt' must be positive, got -1"):
        next(rollout(several, context, 1, frame_dt=-1.0))


@pytest.fixture(scope="module")
def travelling():
    """Waves that travel at speed 1, and a surrogate trained on every first to fourth of their frames."""
    grid = Grid(16, 2 * math.pi, True)
    phases = 2 * math.pi * torch.rand(24, 1, generator=torch.Generator().manual_seed(0))
    start = torch.cos(grid.axis(0) + phases)[..., None]
    frames = simulate("advection_diffusion", start, 17, 0.1).float()
    surrogate = fit(
        frames[:16],
        grid=grid,
        frame_dt=0.1,
        fields=["u"],
        num_context_frames=1,
        updates=100,
        progress=False,
        valid_array=frames[16:20],
        settings={**SIZES, "protocol.stride": [1, 2, 3, 4]},
    ).eval()
    return surrogate, start[20:].double()


def stored(frames: torch.Tensor, problem: Problem, path: Path) -> Path:
    """``frames`` as a file of ours."""
    writer = SplitWriter(path, Contents(problem, "train", *frames.shape[:2]))
    writer.prepare()
    for rows in writer.pending(len(frames)):
        with writer.batch(rows) as output:
            for frame in frames.unbind(1):
                output.write(frame.numpy())
    writer.finish()
    return path


def test_a_stored_dataset_is_evaluated_and_continued_at_a_stride(travelling, tmp_path):
    surrogate, start = travelling
    problem = Problem("custom", surrogate.problem.grid, surrogate.problem.state, frame_dt=0.1, horizon=3)
    frames = simulate("advection_diffusion", start, 17, 0.1).float()
    data = stored(frames, problem, tmp_path / "train.hdf5")
    bundle = save_bundle(surrogate, tmp_path / "bundle")
    options = {"split": "train", "num_frames": 3, "timing": False, "device": "cpu"}
    found = {s: evaluate_run(bundle, data, stride=s, out=tmp_path / f"at-{s}", **options) for s in (1, 4)}
    assert [found[s].frame_dt for s in (1, 4)] == pytest.approx([0.1, 0.4])
    assert found[1].dataset_fingerprint != found[4].dataset_fingerprint
    with np.load(tmp_path / "at-4" / "rollouts.npz") as kept:
        assert float(kept["frame_dt"]) == pytest.approx(0.4)
        np.testing.assert_array_equal(kept["truth"][0], frames[0, 4:13:4])
    predict_file(bundle, data, 2, tmp_path / "out.npy", device="cpu", parameters={"frame_dt": 0.3})
    with torch.no_grad():
        expected = torch.stack(list(rollout(load(bundle), frames[:, :1], 2, frame_dt=0.3)), dim=1)
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected.numpy(), rtol=1e-5, atol=1e-6)
    with pytest.raises(UserError, match=r"its frames are 0.1 apart, of which frame_dt=0.25 is no multiple"):
        predict_file(bundle, data, 2, tmp_path / "other.npy", device="cpu", parameters={"frame_dt": 0.25})
    one_step = build_surrogate(problem, dim=8, depth=1, heads=2, head_dim=4, kernel_dim=4)
    with pytest.raises(UserError, match="is for one time step: leave out --stride"):
        evaluate_run(save_bundle(one_step, tmp_path / "one"), data, stride=2, **options)


@pytest.mark.parametrize("step", [0.1, 0.2, 0.25, 0.4])
def test_it_predicts_at_every_step_and_between(travelling, step):
    surrogate, start = travelling
    assert surrogate.problem.parameters == ("frame_dt",) and surrogate.problem.frame_dt == 0.1
    truth = simulate("advection_diffusion", start, 5, step).float()
    with torch.no_grad():
        found = torch.stack(list(rollout(surrogate, truth[:, :1], 4, frame_dt=step)), dim=1)
    assert float((found - truth[:, 1:]).norm() / truth[:, 1:].norm()) < 0.15
    assert float((truth[:, :1] - truth[:, 1:]).norm() / truth[:, 1:].norm()) > 0.2, "nothing is learned by persistence"


def test_evaluation_and_files_take_the_interval_of_the_data(travelling, tmp_path, caplog):
    surrogate, start = travelling
    problem = Problem("custom", surrogate.problem.grid, surrogate.problem.state, frame_dt=0.1, horizon=4)
    fine = ArrayDataset(
        simulate("advection_diffusion", start, 17, 0.1).float(), problem, "test", normalizer=surrogate.normalizer
    )
    with caplog.at_level(logging.WARNING, "factformer"):
        at = {s: evaluate(surrogate, SteppedDataset(fine, s), num_frames=3, timing=False, device="cpu") for s in (1, 3)}
        assert not caplog.records
        evaluate(surrogate, SteppedDataset(fine, 5), num_frames=3, timing=False, device="cpu")
    assert caplog.messages == ["custom: frame_dt=0.5 outside 0.1 to 0.4, the range that the surrogate was trained on"]
    assert [at[s].frame_dt for s in (1, 3)] == pytest.approx([0.1, 0.3])
    assert all(result.fields["u"].relative_l2 < 0.15 for result in at.values())
    loaded = save_bundle(surrogate, tmp_path / "bundle")
    np.savez(tmp_path / "context.npz", u=fine.read([0])[..., 0].numpy(), t=0.1 * np.arange(17))
    predict_file(loaded, tmp_path / "context.npz", 2, tmp_path / "out.npy", device="cpu", start=0)
    by_file = np.load(tmp_path / "out.npy")
    with torch.no_grad():
        expected = torch.stack(list(rollout(load(loaded), fine.read([0], slice(0, 1)), 2)), dim=1)
    np.testing.assert_allclose(by_file, expected.numpy(), rtol=1e-5, atol=1e-6)
    told = {"parameters": {"frame_dt": 0.2}, "device": "cpu", "start": 0}
    predict_file(loaded, tmp_path / "context.npz", 2, tmp_path / "coarse.npz", **told)
    with np.load(tmp_path / "coarse.npz") as coarse, torch.no_grad():
        expected = torch.stack(list(rollout(load(loaded), fine.read([0], slice(0, 1)), 2, frame_dt=0.2)), dim=1)
        assert float(coarse["frame_dt"]) == pytest.approx(0.2)
        np.testing.assert_allclose(coarse["frames"], expected.numpy(), rtol=1e-5, atol=1e-6)
    np.savez(tmp_path / "between.npz", u=fine.read([0])[..., 0].numpy(), t=0.25 * np.arange(17))
    predict_file(loaded, tmp_path / "between.npz", 2, tmp_path / "between_out.npz", device="cpu", start=0)
    with np.load(tmp_path / "between_out.npz") as between, torch.no_grad():
        expected = torch.stack(list(rollout(load(loaded), fine.read([0], slice(0, 1)), 2, frame_dt=0.25)), dim=1)
        np.testing.assert_allclose(between["frames"], expected.numpy(), rtol=1e-5, atol=1e-6)
