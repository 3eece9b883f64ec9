"""Where the grid is cut, a process reads its part of a frame, and prepares the windows that one process would."""

import h5py
import numpy as np
import pytest
import torch

from factformer import Grid
from factformer.batch import Window
from factformer.data.dataset import ArrayDataset
from factformer.data.hdf5.source import Source
from factformer.data.layout import Contents
from factformer.data.section import Section
from factformer.data.store import open_dataset
from factformer.data.windows import Windows
from factformer.data.writer import SplitWriter
from factformer.errors import UserError
from factformer.parallel.groups import Places
from factformer.parallel.part import GridPart, cut_window
from factformer.pdes import find_pde
from factformer.problem import Field, Problem
from factformer.training.experiment.definition import Experiment
from factformer.training.feed.feeding import ResidentFeed, StreamingFeed, Visits
from factformer.training.feed.noise import ContextNoise
from factformer.training.feed.parts import PartDataset
from factformer.training.feed.preparation import Preparation
from factformer.training.feed.steps import SteppedDataset

GRID = Grid((12, 7, 10), (1.0, 2.0, 1.0), True)
PROBLEM = Problem(
    "box",
    GRID,
    (Field("p"), Field("v", 3)),
    static=(Field("depth"),),
    forcing=(Field("inflow"),),
    parameters=("speed",),
    frame_dt=0.1,
    num_context_frames=2,
    horizon=2,
    masked=True,
)
COUNT, FRAMES = 3, 6
CPU = torch.device("cpu")


def places(*shape):
    return [Places(shape, place) for place in np.ndindex(*shape)]


def parts(grid, *shape):
    return [GridPart.of(grid, place, [1] * grid.num_axes) for place in places(*shape)]


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A file with all that a problem may have."""
    folder, random = tmp_path_factory.mktemp("stored"), np.random.default_rng(0)
    writer = SplitWriter(folder / "train.hdf5", Contents(PROBLEM, "train", COUNT, FRAMES))
    writer.prepare()
    inside = random.random((COUNT, *GRID.shape)) > 0.2
    for batch in writer.pending(COUNT):
        with writer.batch(batch) as output:
            output.write_mask(inside)
            output.write_parameters(np.linspace(1, 2, COUNT)[:, None].astype("f4"))
            output.write_static(random.normal(size=(COUNT, *GRID.shape, 1)).astype("f4") * inside[..., None])
            for _ in range(FRAMES):
                fields = random.normal(size=(COUNT, *GRID.shape, 5)).astype("f4") * inside[..., None]
                output.write(fields[..., :4], fields[..., 4:])
    writer.finish()
    return folder


@pytest.mark.parametrize("shape", [(2, 1, 1), (1, 1, 3), (2, 1, 2), (1, 1, 1)])
@pytest.mark.parametrize("kind", ["file", "memory", "several steps"])
def test_sections_are_parts_of_what_is_read_whole(stored, shape, kind):
    data = open_dataset(stored)
    if kind == "memory":
        known = {part: data.read(slice(None), part=part) for part in PROBLEM.parts}
        data = ArrayDataset(data.read(slice(None)), PROBLEM, **known)
    if kind == "several steps":
        data = SteppedDataset(data, 2)
    for part in parts(GRID, *shape):
        held = PartDataset(data, part)
        assert held.fingerprint == data.fingerprint
        for trajectories, frames in ((slice(None), slice(None)), ([2, 0], slice(2, None, -1)), ([1], slice(0, 2))):
            whole = cut_window(data.window(trajectories, frames), part)
            ours = held.window(trajectories, frames)
            assert torch.equal(ours.frames, whole.frames)
            for name, one, other in zip(whole.known.names, ours.known.tensors, whole.known.tensors, strict=True):
                assert torch.equal(one, other), name


def test_no_more_than_the_part_is_read_of_a_frame(stored, monkeypatch):
    data, read = open_dataset(stored), []
    everything = h5py.Dataset.__getitem__

    def counted(self, *arguments):
        values = everything(self, *arguments)
        read.append(values.nbytes if self.name.startswith("/t1") else 0)
        return values

    monkeypatch.setattr(h5py.Dataset, "__getitem__", counted)
    held = [PartDataset(data, part) for part in parts(GRID, 2, 1, 2)]
    frame = 3 * 4 * GRID.num_points
    for number, dataset in enumerate(held):
        for visit, pieces in ((1, (0.25 + 0.25) * 4), (2, 0.25 * 4)):  # a quarter, and once a quarter of the checksums
            read.clear()
            dataset.read([0], slice(0, 4))
            if visit == 2 or number == 0:
                assert sum(read) == pieces * frame
            else:
                assert sum(read) <= pieces * frame
            assert max(read) <= frame  # four frames of a quarter each, and no whole frame for its checksum
    read.clear()
    open_dataset(stored).read([0], slice(0, 4))
    assert sum(read) == 4 * frame


def test_a_flipped_bit_is_seen_by_one_of_the_processes(stored, tmp_path):
    path = tmp_path / "train.hdf5"
    path.write_bytes((stored / "train.hdf5").read_bytes())
    with h5py.File(path, "r+") as file:
        file["t1_fields/v"][1, 3, 11, 6, 9, 2] += 1.0
    failed = []
    for part in parts(GRID, 3, 1, 1):
        held = PartDataset(open_dataset(tmp_path), part)
        held.read([1], slice(0, 3))
        try:
            held.read([1], slice(2, 6))
        except UserError as error:
            failed.append(str(error))
    assert len(failed) == 1
    assert "frame 3 of trajectory 1 does not fit its checksum" in failed[0]


@pytest.mark.parametrize("shape", [(4, 6), (4, 6, 1), (4, 1, 6), (24,)])
def test_foreign_arrays_of_any_shape(tmp_path, shape):
    grid = (4, 6, 5) if shape != (4, 1, 6) else (4, 5, 6)
    varies = {(4, 6): [True, True, False], (4, 6, 1): [True, True, False], (4, 1, 6): [True, False, True]}
    flags = varies.get(shape, [True, True, False])
    with h5py.File(tmp_path / "foreign.h5", "w") as file:
        values = file.create_dataset("u", data=np.arange(2 * 3 * 24, dtype="f4").reshape(2, 3, *shape))
        values.attrs["dim_varying"] = flags
        source = Source(values, grid)
        everything = tuple(slice(0, size) for size in grid)
        whole = np.empty((2, 3, *grid, 1), dtype="f4")
        source.read([0, 1], range(3), whole, Section(everything))
        kept = (slice(1, 3), slice(2, 5), slice(0, 4))
        part = np.empty((2, 2, 2, 3, 4, 1), dtype="f4")
        source.read([1, 0], range(2, 0, -1), part, Section(kept, 0, 2))
    np.testing.assert_array_equal(part, whole[[1, 0]][:, [2, 1]][:, :, *kept])


@pytest.mark.parametrize("feed", [ResidentFeed, StreamingFeed])
def test_feeds_give_parts_of_the_windows(stored, feed):
    data = SteppedDataset(open_dataset(stored), strides=(1, 2))

    def batches(dataset):
        windows = Windows(COUNT, FRAMES, 3, 1, (1, 2))
        found = feed(dataset, Visits(windows, 7, 4), CPU).batches(1)
        result = [next(found) for _ in range(3)]
        found.close()
        return result

    whole = batches(data)
    for part in parts(GRID, 2, 1, 2):
        for ours, theirs in zip(batches(PartDataset(data, part)), whole, strict=True):
            kept = cut_window(theirs, part)
            assert torch.equal(ours.frames, kept.frames)
            assert all(torch.equal(a, b) for a, b in zip(ours.known.tensors, kept.known.tensors, strict=True))


def test_the_noise_of_a_part_is_a_part_of_the_noise(stored):
    data = open_dataset(stored)
    window = data.window([0, 2], slice(0, 4))
    noise = ContextNoise(0.3, 2, data.normalizer(), seed=5)
    whole = noise(window, 9, [1, 4]).frames
    for part in parts(GRID, 2, 1, 2):
        noise.part = part
        assert torch.equal(noise(cut_window(window, part), 9, [1, 4]).frames, part.cut(whole, 2))


@pytest.mark.parametrize("augment", [False, True])
def test_windows_are_prepared_as_one_process_prepares_them(augment):
    """Symmetries move points over the cuts, so that whole frames come in and parts go out."""

    class Simulated(ArrayDataset):
        provenance = {"parameters": {"forcing_wavenumber": 4}}  # noqa: RUF012

    problem = find_pde("kolmogorov_flow").problem(16)
    frames = torch.randn(2, 5, *problem.grid.shape, problem.num_state_channels)
    data = Simulated(frames, problem)
    settings = {"augment": augment, "noise": 0.1, "batch_size": 2}
    experiment = Experiment.parse({"problem": problem.name, "model": {"name": "factformer"}, "training": settings})
    window = Window(frames)
    whole = Preparation(experiment, data, problem)(window, 3, range(2))
    assert not torch.equal(whole.frames, frames)
    for part in parts(problem.grid, 2, 2):
        given = window if augment else cut_window(window, part)
        ours = Preparation(experiment, data, problem, part)(given, 3, range(2)).frames
        assert torch.equal(ours, part.cut(whole.frames, 2))
        assert ours.untyped_storage().nbytes() == ours.nbytes  # whole frames are not kept
