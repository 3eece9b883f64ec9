from __future__ import annotations

import os
import pickle
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from factformer.data import ArrayDataset, generate, open_dataset
from factformer.data.agreement import describe_difference
from factformer.data.layout import Contents
from factformer.data.writer import SplitWriter
from factformer.errors import UserError
from factformer.grid import Grid
from factformer.problem import Field, Problem

PROBLEMS = {
    "one axis": Problem("line", Grid(9, 1.0, True), (Field("u"),), frame_dt=0.1),
    "nodes": Problem("nodes", Grid((5, 4), (1.0, 3.0), False), (Field("p"), Field("v", 2)), boundary="zero"),
    "mixed": Problem(
        "mixed",
        Grid((5, 4, 3), (1.0, 3.0, 2.0), (True, False, True), "cells"),
        (Field("v", 3),),
        boundary="reflect",
    ),
    "explicit": Problem(
        "explicit",
        Grid.from_axes([[0.0, 0.1, 0.4, 1.0], [0.0, 0.3, 0.5]], (False, True), (1.0, 0.7)),
        (Field("species", 5),),
        boundary="zero",
        num_context_frames=2,
        horizon=2,
        frame_dt=1 / 3,
    ),
    "four axes": Problem("four", Grid((2, 3, 4, 2), 1.0, True), (Field("tensor", 16), Field("v", 4))),
    "steady": Problem(
        "steady",
        Grid((4, 4), 1.0, False),
        (Field("u"),),
        (Field("a"), Field("f", 2)),
        num_context_frames=0,
        boundary="zero",
    ),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_problem_and_values_come_back_from_the_file(name: str, tmp_path: Path) -> None:
    problem = PROBLEMS[name]
    num_frames = 1 if problem.steady else 4
    generator = torch.Generator().manual_seed(0)
    frames = torch.randn(3, num_frames, *problem.grid.shape, problem.num_state_channels, generator=generator)
    static = torch.randn(3, *problem.grid.shape, problem.num_static_channels, generator=generator)
    writer = SplitWriter(tmp_path / "train.hdf5", Contents(problem, "train", 3, num_frames))
    writer.prepare()
    for batch in writer.pending(2):
        with writer.batch(batch) as output:
            if problem.static:
                output.write_static(static[batch.start : batch.stop].numpy())
            for frame in frames[batch.start : batch.stop].unbind(1):
                output.write(frame.numpy())
    writer.finish()
    data = open_dataset(tmp_path)
    assert data.problem == problem
    assert torch.equal(data.read(slice(None)), frames)
    memory = ArrayDataset(frames, problem, static=static if problem.static else None)
    for part in ("state", *problem.parts):
        assert torch.equal(data.read([2, 1], part=part), memory.read([2, 1], part=part))
    for key, value in data.normalizer().to_dict().items():
        assert value == pytest.approx(memory.normalizer().to_dict()[key], rel=1e-5), key


def test_reading_by_list_slice_and_frame_range(decay, tmp_path: Path) -> None:
    generate(decay, tmp_path)
    data = open_dataset(tmp_path)
    everything = data.read(slice(None))
    assert torch.equal(data.read([5, 0, 5], slice(1, 4)), everything[[5, 0, 5], 1:4])
    assert torch.equal(data.read(slice(1, 6, 2), slice(-2, None)), everything[1:6:2, -2:])
    assert torch.equal(data.read(torch.tensor([2]).tolist(), slice(0, 5, 2)), everything[[2], ::2])
    assert torch.equal(data.read([1], slice(3, 0, -2)), everything[[1]][:, [3, 1]])
    assert data.read([], slice(0, 2)).shape == (0, 2, 6, 6, 3)
    with pytest.raises(IndexError):
        data.read([7])
    memory = ArrayDataset(everything, data.problem)
    assert torch.equal(memory.read([5, 0, 5], slice(1, 4)), everything[[5, 0, 5], 1:4])
    assert torch.equal(memory.read(slice(1, 3), slice(3, 0, -2)), data.read(slice(1, 3), slice(3, 0, -2)))
    memory.read(slice(None)).zero_()
    assert torch.equal(memory.read(slice(None)), everything)
    assert torch.equal(data.batch([3]).context, everything[3:4, :2])


def test_one_file_knows_its_split_and_finds_the_training_split(decay, tmp_path: Path) -> None:
    generate(decay, tmp_path)
    data = open_dataset(tmp_path / "test.hdf5")
    assert data.split == "test"
    assert data.normalizer().to_dict() == open_dataset(tmp_path, "train").normalizer().to_dict()
    (tmp_path / "train.hdf5").unlink()
    with pytest.raises(UserError, match="no training split"):
        open_dataset(tmp_path, "test").normalizer()


def test_a_choice_of_fields_takes_their_statistics_along(decay, tmp_path: Path) -> None:
    generate(decay, tmp_path)
    whole, part = open_dataset(tmp_path), open_dataset(tmp_path, state=["pressure"])
    assert torch.equal(part.read([1]), whole.read([1])[..., 2:])
    assert part.normalizer().state_mean.tolist() == whole.normalizer().state_mean[2:].tolist()
    assert open_dataset(tmp_path, "test", state=["pressure"]).normalizer().state_std.shape == (1,)


def test_datasets_travel_to_other_processes(decay, tmp_path: Path) -> None:
    generate(decay, tmp_path)
    data = open_dataset(tmp_path)
    expected = data.read([3])
    assert torch.equal(pickle.loads(pickle.dumps(data)).read([3]), expected)
    child = os.fork()
    if child == 0:
        os._exit(0 if torch.equal(data.read([3]), expected) else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_fingerprint_is_that_of_problem_settings_and_seed(decay, tmp_path: Path) -> None:
    prints = []
    for index, arguments in enumerate(
        [
            {},
            {},
            {"seed": 1},
            {"parameters": {"rate": 1.0}},
            {"resolution": 4},
            {"simulation_resolution": 24},
            {"trajectories": 2},
        ]
    ):
        generate(decay, tmp_path / str(index), splits=["valid"], **{"trajectories": 1, **arguments})
        prints.append(open_dataset(tmp_path / str(index), "valid").fingerprint)
    assert prints[0] == prints[1]
    assert len(set(prints)) == len(prints) - 1


def test_newer_formats_are_refused(decay, tmp_path: Path) -> None:
    generate(decay, tmp_path, splits=["train"])
    with h5py.File(tmp_path / "train.hdf5", "r+") as file:
        file.attrs["format"] = 99
    with pytest.raises(UserError, match="format 99"):
        open_dataset(tmp_path)


def test_arrays_in_memory_are_checked() -> None:
    problem = PROBLEMS["nodes"]
    good = np.zeros((2, 3, 5, 4, 3))
    with pytest.raises(UserError, match="must have shape"):
        ArrayDataset(good[..., :2], problem)
    with pytest.raises(UserError, match="empty"):
        ArrayDataset(good[:0], problem)
    bad = good.copy()
    bad[1, 2, 0, 0, 0] = np.inf
    with pytest.raises(UserError, match="in trajectory 1"):
        ArrayDataset(bad, problem)
    with pytest.raises(UserError, match="needs static fields a"):
        ArrayDataset(np.zeros((2, 1, 4, 4, 1)), PROBLEMS["steady"])
    with pytest.raises(UserError, match="static must hold 2 trajectory entries"):
        ArrayDataset(np.zeros((2, 1, 4, 4, 1)), PROBLEMS["steady"], static=np.zeros((1, 4, 4, 3)))
    with pytest.raises(UserError, match="one frame: each sample holds 3"):
        ArrayDataset(np.zeros((2, 3, 4, 4, 1)), PROBLEMS["steady"], static=np.zeros((2, 4, 4, 3)))
    with pytest.raises(UserError, match="training split"):
        ArrayDataset(good, problem, "test").normalizer()
    constant = ArrayDataset(good + 7.0, problem).normalizer()
    assert constant.state_std.tolist() == constant.increment_std.tolist() == [0.0] * 3
    assert constant.context_std.tolist() == [1.0] * 3
    assert constant.deviation.tolist() == pytest.approx([7.0] * 3)
    assert ArrayDataset(good, problem, "test", normalizer=constant).normalizer() is constant


@pytest.mark.parametrize(("level", "round_off"), [(1.0, 1e-10), (-300.0, 1e-8)])
def test_fields_that_are_constant_but_for_round_off_are_taken_as_constant(level: float, round_off: float) -> None:
    noise = np.random.default_rng(0).normal(size=(2, 3, 9, 1))
    data = ArrayDataset(level + round_off * noise, PROBLEMS["one axis"])
    assert torch.equal(data.read([0, 1]), torch.full((2, 3, 9, 1), level))
    assert data.normalizer().state_std.tolist() == [0.0]
    with pytest.raises(UserError, match="float32 keeps too little"):
        ArrayDataset(1.0 + 1e-8 * noise, PROBLEMS["one axis"])


@pytest.mark.parametrize("kind", ["i4", "u4", "i8", "u8", "f8"])
def test_whole_numbers_hold_no_round_off(kind: str) -> None:
    numbers = np.arange(2 * 3 * 9).reshape(2, 3, 9, 1).astype(kind)
    level = np.asarray(2**40 if kind[1] == "8" else 2**30).astype(kind)
    with pytest.raises(UserError, match="float32 keeps too little"):
        ArrayDataset(level + numbers, PROBLEMS["one axis"])
    still = ArrayDataset(level + 0 * numbers, PROBLEMS["one axis"]).normalizer()
    assert still.state_std.tolist() == [0.0]
    assert torch.equal(ArrayDataset(numbers, PROBLEMS["one axis"]).read([1])[0, 0, :, 0], torch.arange(27.0, 36.0))


@pytest.mark.parametrize("kind", ["f4", "f8"])
def test_numbers_near_the_ends_of_float32(kind: str) -> None:
    noise = np.random.default_rng(0).normal(size=(2, 3, 9, 1))
    with pytest.raises(UserError, match="which float32 keeps as zero"):
        ArrayDataset((1e-41 * noise).astype(kind), PROBLEMS["one axis"])
    with pytest.raises(UserError, match="beyond the numbers of float32"):
        ArrayDataset((1e37 * noise).astype(kind), PROBLEMS["one axis"])


def test_difference_from_an_expected_problem_is_named(decay, tmp_path: Path) -> None:
    generate(decay, tmp_path, splits=["train"])
    data = open_dataset(tmp_path)
    problem = data.problem
    data.require(problem)
    for change, message in [
        ({"frame_dt": 0.5}, "frame interval 0.5 expected, 0.25 found"),
        ({"boundary": "zero"}, "boundary"),
        ({"grid": Grid((6, 6), (1.0, 3.0), (True, False), "cells")}, "grid extent"),
        (
            {"grid": Grid((6, 8), (1.0, 2.0), (True, False), "cells")},
            r"grid \(6, 8\) expected, \(6, 6\) found",
        ),
    ]:
        with pytest.raises(UserError, match=message):
            data.require(replace(problem, **change))


@pytest.mark.parametrize("unit", [1e-9, 1.0, 1e3])
def test_whether_problems_agree_is_no_matter_of_units(unit: float) -> None:
    def difference(grid: Grid, interval: float = 1.0) -> str:
        one = Problem("p", Grid(16, unit, False), (Field("u"),), frame_dt=unit, boundary="zero")
        return describe_difference(one, replace(one, grid=grid, frame_dt=interval * unit))

    even = torch.linspace(0, 1, 16, dtype=torch.float64)
    assert difference(Grid.from_axes([even * unit])) == ""
    assert "other coordinates expected" in difference(Grid.from_axes([even**2 * unit]))
    assert "grid extent" in difference(Grid(16, 5 * unit, False))
    assert "frame interval" in difference(Grid(16, unit, False), 5.0)
