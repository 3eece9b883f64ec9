"""Training on every s-th frame: windows, statistics, what the surrogate is of, and where it is scored."""

import numpy as np
import pytest
import torch
from small_waves import TINY_MODEL, tiny_experiment, wave_data, wave_problem, waves

from factformer import Field, Problem, fit, rollout
from factformer.bundle import load
from factformer.data.dataset import ArrayDataset
from factformer.data.windows import Windows, frames_from
from factformer.errors import UserError
from factformer.evaluation.accuracy import evaluate, start_frames
from factformer.evaluation.inspection import sample_contexts
from factformer.prediction.context import read_context
from factformer.protocols import build_protocol, parse_protocol
from factformer.training.experiment.assembly import new_surrogate, strided_normalizer
from factformer.training.experiment.definition import Experiment
from factformer.training.feed.feeding import ResidentFeed, StreamingFeed, Visits
from factformer.training.loop.train import train

CPU = torch.device("cpu")


def strided(stride: int, **training) -> Experiment:
    return tiny_experiment(updates=2, **training).override([f"protocol.stride={stride}"])


@pytest.mark.parametrize(("stride", "frame_stride", "per_trajectory"), [(1, 1, 9), (1, 2, 6), (2, 3, 2), (1, 3, 3)])
def test_windows_of_every_phase(stride, frame_stride, per_trajectory):
    windows = Windows(2, 12, 4, stride, frame_stride)
    assert len(windows) == 2 * per_trajectory
    for index in range(len(windows)):
        trajectory, start = windows[index]
        chosen = range(12)[windows.frames(index)]
        assert trajectory < 2 and start % stride == 0
        assert list(chosen) == [start + k * frame_stride for k in range(4)]


def test_a_window_that_reaches_too_far_is_named():
    assert len(Windows(1, 10, 4, 1, 3)) == 1
    with pytest.raises(UserError, match="4 frames that lie 3 apart does not fit into trajectories of 9 frames"):
        Windows(1, 9, 4, 1, 3)
    with pytest.raises(UserError, match=r"7 frames that lie 3 apart do not fit .* lower protocol\.stride"):
        train(strided(3), *wave_data(), folder="unused")


@pytest.mark.parametrize("feed", [ResidentFeed, StreamingFeed])
def test_feeds_give_every_second_frame(feed):
    dataset, _ = wave_data()
    visits = Visits(Windows(3, 12, 4, 1, 2), 7, 2)
    batches = feed(dataset, visits, CPU).batches(1)
    for update in (1, 2):
        window = next(batches)
        for row, index in enumerate(visits.at(update)):
            trajectory, start = visits.windows[index]
            assert torch.equal(window.frames[row], dataset.read([trajectory], slice(start, start + 7, 2))[0])
    batches.close()


def test_the_surrogate_is_of_the_longer_interval():
    dataset, _ = wave_data()
    experiment = strided(2)
    problem = dataset.problem.with_stride(2)
    assert (problem.frame_dt, problem.horizon, problem.num_context_frames) == (0.4, 2, 3)
    surrogate = new_surrogate(experiment, dataset, build_protocol(experiment.protocol, problem))
    assert surrogate.problem == problem
    increments = dataset.read(slice(None))[:, 2:] - dataset.read(slice(None))[:, :-2]
    torch.testing.assert_close(surrogate.normalizer.increment_std, increments.std(unbiased=False)[None])
    assert torch.equal(surrogate.normalizer.state_std, dataset.normalizer().state_std)
    assert strided_normalizer(dataset, 1) is dataset.normalizer()


def test_a_run_keeps_its_stride_and_resumes_with_it_alone(tmp_path):
    dataset, held_out = wave_data()
    experiment = strided(2).override(["protocol.pushforward=0"])
    outcome = train(experiment, dataset, held_out, folder=tmp_path / "run")
    assert outcome.surrogate.problem.frame_dt == 0.4
    assert load(tmp_path / "run").problem == dataset.problem.with_stride(2)
    for stride in (1, 3):
        other = experiment.override([f"protocol.stride={stride}"])
        with pytest.raises(UserError, match=f"protocol.stride is 2 there and {stride} here"):
            train(other, dataset, held_out, folder=tmp_path / "run", resume=True)


def test_fit_takes_a_stride():
    settings = {"protocol": {"stride": 2}, **{f"model.{k}": v for k, v in TINY_MODEL.items() if k != "name"}}
    grid = wave_problem().grid
    surrogate = fit(
        waves(3),
        grid=grid,
        frame_dt=0.2,
        fields=["u"],
        num_context_frames=2,
        valid_array=waves(1, first=7),
        updates=2,
        progress=False,
        settings=settings,
    )
    assert surrogate.problem.frame_dt == 0.4
    assert surrogate.problem.horizon == 5
    assert torch.stack(list(rollout(surrogate, waves(1)[:, :4:2], 3))).isfinite().all()


def moves_by(surrogate, points: int):
    """A surrogate of waves that move along the first axis by a known number of points a frame."""
    surrogate.predict = lambda batch, steps, grid: torch.stack(
        [batch.context[:, -1].roll(points * step, 1) for step in range(1, steps + 1)], 1
    )
    return surrogate.eval()


def moving() -> ArrayDataset:
    """Random fields that move by one point a frame."""
    start = torch.randn(3, 8, 8, 1, generator=torch.Generator().manual_seed(3))
    problem = wave_problem()
    return ArrayDataset(torch.stack([start.roll(step, 1) for step in range(13)], 1), problem)


def test_it_is_scored_at_the_frames_that_it_predicts():
    dataset = moving()
    surrogate = moves_by(fitted(dataset, 2), 2)
    result = evaluate(surrogate, dataset, num_starts=3)
    assert result.fields["u"].relative_l2 == 0.0
    assert (result.stride, result.frame_dt, result.num_frames, result.num_windows) == (2, 0.4, 2, 9)
    assert start_frames(surrogate, dataset, 2, 3) == [0, 2, 4]  # 3 + 2 frames reach over 9 of 13
    assert evaluate(moves_by(surrogate, 1), dataset, timing=False).fields["u"].relative_l2 > 0.5
    with pytest.raises(UserError, match="hold 13 frames, but 3 context and 5 predicted ones, 2 frames apart, are"):
        evaluate(surrogate, dataset, num_frames=5)


def fitted(dataset: ArrayDataset, stride: int):
    experiment = strided(stride)
    return new_surrogate(experiment, dataset, build_protocol(experiment.protocol, dataset.problem.with_stride(stride)))


def test_intervals_that_do_not_fit_are_refused():
    dataset = moving()
    surrogate = fitted(dataset, 2)
    other = ArrayDataset(dataset.read(slice(None)), wave_problem().with_stride(3), normalizer=dataset.normalizer())
    with pytest.raises(UserError, match=r"advances 0\.4 per frame and the dataset 0\.6: .* or a whole part of it"):
        evaluate(surrogate, other)


def test_attention_is_looked_at_on_frames_of_its_interval():
    dataset = moving()
    batch = next(iter(sample_contexts(fitted(dataset, 2), dataset, 3, CPU)))
    assert torch.equal(batch.context, dataset.read(slice(None), frames_from(0, 3, 2)))


def test_a_file_s_context_is_read_at_its_interval(tmp_path):
    frames, problem = waves(2), wave_problem().with_stride(2)
    np.savez(tmp_path / "waves.npz", u=frames.numpy(), t=np.arange(12) * 0.2)
    context = read_context(tmp_path / "waves.npz", problem)
    assert str(context) == "frames 7 to 11, 2 apart, of 12"
    assert torch.equal(context.batch.context, frames[:, 7::2])
    assert read_context(tmp_path / "waves.npz", problem, start=0).start == 0
    with pytest.raises(UserError, match="too few for 3 context frames that lie 2 apart from frame 8 on"):
        read_context(tmp_path / "waves.npz", problem, start=8)
    np.save(tmp_path / "waves.npy", frames.numpy())  # it says no times: its frames are as far apart as needed
    assert torch.equal(read_context(tmp_path / "waves.npy", problem).batch.context, frames[:, -3:])


def test_a_steady_problem_has_no_stride():
    problem = Problem("steady", wave_problem().grid, (Field("u"),), (Field("a"),), num_context_frames=0)
    with pytest.raises(UserError, match="is steady and has one frame"):
        build_protocol(parse_protocol({"name": "steady", "stride": 2}), problem)
