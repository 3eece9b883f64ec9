"""Feeding: every process its own share, in an order that depends on seed and epoch alone."""

import pytest
import torch
from small_waves import wave_problem, waves

from factformer.data.dataset import ArrayDataset, Dataset
from factformer.data.windows import Windows
from factformer.errors import UserError
from factformer.grid import Grid
from factformer.problem import Field, Problem
from factformer.training.experiment.config import DataConfig
from factformer.training.feed.feeding import ResidentFeed, StreamingFeed, Visits, open_feed

CPU = torch.device("cpu")


def visits(length=5, batch_size=4, **rank) -> Visits:
    return Visits(Windows(3, 12, length), 7, batch_size, **rank)


def first_batches(feed, count, update=1):
    batches = feed.batches(update)
    result = [next(batches) for _ in range(count)]
    batches.close()
    return result


def test_an_epoch_visits_every_window_once():
    chosen = visits(batch_size=3)
    num_windows = len(chosen.windows)
    seen = [index for update in range(1, num_windows // 3 + 1) for index in chosen.at(update)]
    assert sorted(seen) == list(range(num_windows))


def test_processes_share_out_the_batch_of_one():
    alone = visits()
    shares = [visits(rank=rank, num_ranks=2) for rank in (0, 1)]
    for update in (1, 2, 9, 30):
        assert shares[0].at(update) + shares[1].at(update) == alone.at(update)


def test_the_order_has_no_memory():
    forward = visits()
    straight = [forward.at(update) for update in range(1, 20)]
    backward = visits()
    assert [backward.at(update) for update in range(19, 0, -1)] == straight[::-1]


def test_streamed_and_resident_windows_are_the_same():
    dataset = ArrayDataset(waves(3), wave_problem())
    resident = first_batches(ResidentFeed(dataset, visits(), CPU), 12, update=3)
    streamed = first_batches(StreamingFeed(dataset, visits(), CPU), 12, update=3)
    for a, b in zip(resident, streamed, strict=True):
        assert torch.equal(a.frames, b.frames)
    trajectory, start = visits().windows[visits().at(3)[1]]
    assert torch.equal(resident[0].frames[1], dataset.read([trajectory])[0, start : start + 5])


def test_half_precision_storage_keeps_three_digits():
    dataset = ArrayDataset(waves(3), wave_problem())
    exact = first_batches(ResidentFeed(dataset, visits(), CPU), 1)[0].frames
    halved = first_batches(ResidentFeed(dataset, visits(), CPU, torch.bfloat16), 1)[0].frames
    assert halved.dtype == torch.float32
    assert float((exact - halved).abs().max()) < 2**-8
    streamed = first_batches(StreamingFeed(dataset, visits(), CPU, torch.bfloat16), 1)[0].frames
    assert torch.equal(streamed, halved)


def test_steady_samples_come_with_their_inputs():
    grid = Grid(4, 1.0, True)
    problem = Problem("map", grid, (Field("y"),), (Field("x"),), num_context_frames=0)
    inputs = torch.arange(6.0)[:, None, None, None].expand(6, 1, 4, 1)
    dataset = ArrayDataset(10 * inputs, problem, static=inputs[:, 0])
    chosen = Visits(Windows(6, 1, 1), 0, 2)
    for kind in (ResidentFeed, StreamingFeed):
        for window in first_batches(kind(dataset, chosen, CPU), 3):
            assert torch.equal(window.frames, 10 * window.known.static[:, None])


def test_memory_decides_where_frames_live(monkeypatch):
    dataset = ArrayDataset(waves(3), wave_problem())
    assert isinstance(open_feed(dataset, visits(), CPU, DataConfig()), ResidentFeed)
    monkeypatch.setattr("factformer.training.feed.feeding.free_memory", lambda device: 1000)
    assert isinstance(open_feed(dataset, visits(), CPU, DataConfig()), StreamingFeed)
    assert isinstance(open_feed(dataset, visits(), CPU, DataConfig(residence="device")), ResidentFeed)


class Spoilt(ArrayDataset):
    """Trajectory 1 turns to NaN when it is read."""

    def read(self, trajectories, frames=slice(None), part="state"):
        values = super().read(trajectories, frames, part)
        if 1 in trajectories:
            values[:, -1] = float("nan")
        return values


@pytest.mark.parametrize("kind", [ResidentFeed, StreamingFeed])
def test_nan_in_the_data_is_named_with_its_trajectory(kind):
    dataset: Dataset = Spoilt(waves(3), wave_problem())
    with pytest.raises(UserError, match=r"train split holds NaN.*trajectory 1"):
        first_batches(kind(dataset, visits(), CPU), 20)


def test_a_validation_split_that_is_all_nan_is_named():
    from factformer.training.loop.validation import Validation

    held_out = ArrayDataset(waves(2), wave_problem(), "valid")
    held_out._parts["state"] = held_out._parts["state"] * float("nan")
    with pytest.raises(UserError, match="the valid split holds NaN or infinite values in trajectory 0"):
        Validation(held_out, 2, CPU)
