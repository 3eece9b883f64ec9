"""The Well's package reads our files, and we read files as The Well makes them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from well_files import write_well_file

from factformer.data import convert, generate, open_dataset
from factformer.data.convert import _copy
from factformer.data.formats.foreign import import_dataset
from factformer.data.formats.parts import Parts
from factformer.data.formats.well_dataset import from_well_dataset
from factformer.data.layout import Contents
from factformer.data.writer import SplitWriter
from factformer.errors import UserError
from factformer.evaluation.run import open_held_out
from factformer.grid import Grid
from factformer.prediction import read_context

well_data = pytest.importorskip("the_well.data")


def opened_by_the_well(folder: Path, split: str, num_in: int, num_out: int, normalization: type | None = None):
    """Windows of ``num_in`` and ``num_out`` frames as The Well's package gives them."""
    return well_data.WellDataset(
        path=str(folder),
        include_filters=[f"{split}.hdf5"],
        n_steps_input=num_in,
        n_steps_output=num_out,
        use_normalization=normalization is not None,
        normalization_type=normalization,
    )


def test_the_well_opens_our_files(decay, tmp_path: Path) -> None:
    generate(decay, tmp_path, parameters={"rate": 0.25})
    theirs = opened_by_the_well(tmp_path, "train", 2, 3)
    assert len(theirs) == 7
    assert theirs.metadata.dataset_name == "decay"
    assert theirs.metadata.spatial_resolution == (6, 6)
    assert theirs.field_names == {0: ["pressure"], 1: ["velocity_x", "velocity_y"], 2: []}
    assert theirs.metadata.constant_scalar_names == ["rate"]
    sample = theirs[4]
    assert sample["input_fields"].shape == (2, 6, 6, 3)
    assert sample["output_fields"].shape == (3, 6, 6, 3)
    assert float(sample["constant_scalars"][0]) == 0.25
    ours = open_dataset(tmp_path).read([4])[0]
    joined = torch.cat([sample["input_fields"], sample["output_fields"]])
    assert torch.equal(joined, ours[..., [2, 0, 1]])  # scalars come first there
    assert sample["boundary_conditions"].tolist() == [[2, 2], [1, 1]]  # periodic, open
    expected = decay.problem(6).grid.mesh(dtype=torch.float32)
    assert torch.allclose(sample["space_grid"], expected)
    assert torch.allclose(sample["output_time_grid"], torch.tensor([0.5, 0.75, 1.0]))


def test_the_well_normalizes_with_our_statistics(decay, tmp_path: Path) -> None:
    from the_well.data.normalization import ZScoreNormalization

    generate(decay, tmp_path)
    theirs = opened_by_the_well(tmp_path, "train", 2, 3, ZScoreNormalization)
    fields = torch.stack([torch.cat([theirs[i]["input_fields"], theirs[i]["output_fields"]]) for i in range(7)])
    assert fields.mean(dim=(0, 1, 2, 3)).abs().max() < 1e-5
    assert fields.std(dim=(0, 1, 2, 3)).tolist() == pytest.approx([1.0] * 3, abs=1e-3)


def test_the_well_opens_a_steady_file(doubling, tmp_path: Path) -> None:
    generate(doubling, tmp_path)
    theirs = opened_by_the_well(tmp_path, "test", 1, 0)
    ours = open_dataset(tmp_path, "test")
    assert torch.equal(theirs[1]["input_fields"], ours.read([1])[0])
    assert torch.equal(theirs[1]["constant_fields"], ours.read([1], part="static")[0])


def test_the_well_normalizes_steady_data(tmp_path: Path) -> None:
    from the_well.data.normalization import ZScoreNormalization

    generate("darcy_flow", tmp_path, preset="tiny", splits=["train"])
    theirs = opened_by_the_well(tmp_path, "train", 1, 0, ZScoreNormalization)
    solutions = torch.stack([theirs[i]["input_fields"] for i in range(len(theirs))])
    assert float(solutions.mean()) == pytest.approx(0, abs=1e-4)
    assert float(solutions.std()) == pytest.approx(1, abs=1e-2)
    assert float(theirs.norm.means_delta["solution"]) == 0
    assert theirs.norm.stds_delta["solution"] == theirs.norm.stds["solution"]


def test_a_file_of_the_well_loads_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "invented.hdf5"
    values = write_well_file(path)
    assert len(well_data.WellDataset(path=str(tmp_path), use_normalization=False)) == 15  # it is one of theirs
    data = open_dataset(path)
    problem = data.problem
    assert (problem.name, problem.frame_dt, problem.boundary) == ("invented", 0.5, "zero")
    assert [(f.name, f.num_channels) for f in problem.state] == [
        ("density", 1),
        ("height", 1),
        ("velocity", 2),
        ("stress", 4),
    ]
    assert problem.grid.periodic == (True, False)
    assert problem.grid.extent == pytest.approx((2 * np.pi, 2.0), rel=1e-6)
    assert problem.grid.is_uniform(0)
    assert problem.grid.axis(1).tolist() == [-1, -0.5, 0, 0.5, 1]
    read = data.read([2, 0], slice(1, 4)).numpy()
    assert read.shape == (2, 3, 8, 5, 8)
    for position, trajectory in enumerate((2, 0)):
        assert np.array_equal(read[position, ..., 0], values["density"][trajectory, 1:4])
        assert np.array_equal(read[position, ..., 1], np.tile(values["height"][trajectory, 1:4], (1, 8, 1)))
        assert np.array_equal(read[position, ..., 2:4], values["velocity"][trajectory, 1:4])
        assert np.array_equal(read[position, ..., 4:], values["stress"][trajectory, 1:4].reshape(3, 8, 5, 4))
    assert float(data.normalizer().state_mean[0]) == pytest.approx(values["density"].mean(), abs=1e-6)


def test_the_caller_may_say_what_the_file_does_not(tmp_path: Path) -> None:
    path = tmp_path / "invented.hdf5"
    values = write_well_file(path)
    grid = Grid((8, 5), (6.0, 2.5), (True, False), "cells")
    data = open_dataset(
        path, state=["velocity", "density"], grid=grid, num_context_frames=2, horizon=3, boundary="reflect"
    )
    assert [f.name for f in data.problem.state] == ["velocity", "density"]
    assert data.problem.grid == grid
    assert (data.problem.num_context_frames, data.problem.horizon, data.problem.boundary) == (2, 3, "reflect")
    assert np.array_equal(data.read([1])[0, ..., 2], values["density"][1])
    with pytest.raises(UserError, match="hold the fields"):
        open_dataset(path, state=["temperature"])
    with pytest.raises(UserError, match="have grid"):
        open_dataset(path, grid=Grid((8, 6), 1.0, True))
    with pytest.raises(UserError, match="has the attributes"):
        open_dataset(path, contxt=3)


def test_static_fields_forcing_and_parameters_are_read_by_name(tmp_path: Path) -> None:
    values = write_well_file(tmp_path / "train.hdf5")
    chosen = {"static": ["mask"], "forcing": ["height", "velocity"], "parameters": ["viscosity"]}
    data = open_dataset(tmp_path / "train.hdf5", **chosen)
    copy = open_dataset(convert_chosen(data, tmp_path / "copy"))
    for found in (data, copy):
        assert [f.name for f in found.problem.state] == ["density", "stress"]
        window = found.window([2, 0], slice(1, 4))
        for row, trajectory in enumerate((2, 0)):
            assert np.array_equal(window.known.static[row, ..., 0], values["mask"])
            assert np.array_equal(window.known.forcing[row, ..., 1:], values["velocity"][trajectory, 1:4])
        assert window.known.parameters.tolist() == pytest.approx(np.full((2, 1), 0.1))
        assert float(found.normalizer().forcing_mean[1]) == pytest.approx(values["velocity"][..., 0].mean(), abs=1e-6)
        assert found.normalizer().parameters_std.tolist() == [1.0]
    for wrong, words in (
        ({"static": ["velocity"]}, "'velocity' varies in time, so it cannot be static"),
        ({"forcing": ["mask"]}, "'mask' does not vary in time, so it cannot be forcing"),
        ({"static": ["msk"]}, "did you mean 'mask'"),
        ({"parameters": ["viscosty"]}, "did you mean 'viscosity'"),
    ):
        with pytest.raises(UserError, match=words):
            open_dataset(tmp_path / "train.hdf5", **wrong)


def convert_chosen(data, out: Path) -> Path:
    """Write the dataset as it is, with its choice of parts."""
    contents = Contents(data.problem, "train", data.num_trajectories, data.num_frames, scalars={"viscosity": 0.1})
    writer = SplitWriter(out / "train.hdf5", contents)
    writer.prepare()
    _copy(data, range(data.num_trajectories), writer, data.paths[0], progress=False)
    writer.release()
    return out


def test_a_download_of_the_well_has_many_files_and_statistics_of_its_own(tmp_path: Path) -> None:
    first = write_well_file(tmp_path / "data" / "train" / "a.hdf5", num_trajectories=2, seed=1)
    second = write_well_file(tmp_path / "data" / "train" / "b.hdf5", num_trajectories=3, seed=2)
    write_well_file(tmp_path / "data" / "test" / "a.hdf5", num_trajectories=1, seed=3)
    data = open_dataset(tmp_path, "train", state=["density"])
    assert data.num_trajectories == 5
    assert np.array_equal(
        data.read([4, 1, 2])[..., 0], [second["density"][2], first["density"][1], second["density"][0]]
    )
    together = np.concatenate([first["density"], second["density"]])
    test = open_dataset(tmp_path, "test", state=["density"])
    assert float(test.normalizer().state_std[0]) == pytest.approx(together.std(), rel=1e-5)
    (tmp_path / "stats.yaml").write_text(
        "mean: {density: 5.0}\nstd: {density: 2.0}\nmean_delta: {density: 0.0}\nstd_delta: {density: 0.5}\n"
    )
    kept = open_dataset(tmp_path, "test", state=["density"]).normalizer()
    assert float(kept.state_mean[0]) == 5.0
    static = data.read(slice(None), part="static")
    assert float(kept.static_mean[0]) == pytest.approx(float(static.mean()), rel=1e-5)
    again = open_dataset(tmp_path, "test", state=["density"], static=[]).normalizer()
    assert again.to_dict() == {
        "context_mean": [5.0],
        "context_std": [2.0],
        "state_mean": [5.0],
        "state_std": [2.0],
        "increment_std": [0.5],
    }


def test_uneven_frames_and_missing_groups_are_named(tmp_path: Path) -> None:
    path = tmp_path / "invented.hdf5"
    write_well_file(path)
    with h5py.File(path, "r+") as file:
        file["dimensions/time"][-1] = 100.0
    with pytest.raises(UserError, match="not evenly spaced"):
        open_dataset(path)
    for index, wrong in ((3, 100.0), (0, np.nan)):
        write_well_file(path)
        with h5py.File(path, "r+") as file:
            file["dimensions/time"][index] = wrong
        with pytest.raises(UserError, match="its times do not increase from frame to frame: correct dimensions/time"):
            open_dataset(path)
    with h5py.File(tmp_path / "other.hdf5", "w") as file:
        file["data"] = np.zeros(3)
    with pytest.raises(UserError, match="not in The Well's layout"):
        open_dataset(tmp_path / "other.hdf5")


def test_boundaries_and_geometries_that_are_not_known_are_told(tmp_path: Path) -> None:
    path = tmp_path / "invented.hdf5"
    write_well_file(path)
    assert open_dataset(path).provenance == {}
    with h5py.File(path, "r+") as file:
        file["boundary_conditions/y_wall"].attrs["bc_type"] = "MAGIC"
        file.attrs["grid_type"] = "spherical"
    stored = open_dataset(convert(path, tmp_path / "out" / "train.hdf5"))
    assert stored.provenance["assumed"] == ["boundary"] and stored.problem.boundary == "reflect"
    assert stored.provenance["left_out"] == ["the geometry 'spherical' (its axes are read as Cartesian)"]
    said = open_dataset(convert(path, tmp_path / "said" / "train.hdf5", settings=["boundary=zero"]))
    assert "assumed" not in said.provenance and said.problem.boundary == "zero"


def test_an_open_well_dataset_is_a_source_of_data(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 2), ("skipped", 3)):
        write_well_file(tmp_path / "data" / "train" / f"{name}.hdf5", num_trajectories=2, seed=seed)
    write_well_file(tmp_path / "data" / "test" / "a.hdf5", num_trajectories=1, seed=4)
    options = {"path": str(tmp_path), "n_steps_input": 2, "n_steps_output": 4, "use_normalization": False}
    theirs = well_data.WellDataset(well_split_name="train", exclude_filters=["skipped"], **options)
    ours = from_well_dataset(theirs, num_context_frames=2, horizon=4)
    assert ours.num_trajectories == len(theirs) == 4
    assert ours.problem.horizon == 4
    for index in range(4):
        sample = theirs[index]
        joined = torch.cat([sample["input_fields"], sample["output_fields"]])
        assert torch.equal(ours.read([index])[0], joined)
    test = from_well_dataset(well_data.WellDataset(well_split_name="test", **options))
    assert test.split == "test"
    assert from_well_dataset(well_data.WellDataset(well_split_name="test", **options), "valid").split == "valid"
    assert test.normalizer().state_std.shape == (8,)


def test_an_open_well_dataset_has_the_split_of_its_files(decay, tmp_path: Path) -> None:
    generate(decay, tmp_path)
    options = {"path": str(tmp_path), "n_steps_input": 2, "n_steps_output": 3, "use_normalization": False}
    test = from_well_dataset(well_data.WellDataset(include_filters=["test.hdf5"], **options))
    assert test.split == "test"
    assert test.normalizer().to_dict() == open_dataset(tmp_path).normalizer().to_dict()
    with pytest.raises(UserError, match="'train' asked for"):
        from_well_dataset(well_data.WellDataset(include_filters=["test.hdf5"], **options), "train")
    with pytest.raises(UserError, match="different splits"):
        from_well_dataset(well_data.WellDataset(**options))


def test_a_field_of_ones_and_zeros_becomes_the_mask_where_it_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "invented.hdf5"
    values = write_well_file(path)
    inside = np.ones((8, 5), np.float32)
    inside[2:4, 1:3] = 0
    with pytest.raises(UserError, match="'mask' holds other numbers than 0 and 1"):
        open_dataset(path, masked=True).read([0], part="mask")
    with h5py.File(path, "r+") as file:
        file["t0_fields/mask"][...] = inside
    assert [item.name for item in open_dataset(path).problem.static] == ["mask"]
    copy = import_dataset(path, parts=Parts(mask="mask"))
    for data in (open_dataset(path, masked=True), copy):
        assert data.problem.masked and not data.problem.static
        assert (data.read([1], part="mask").numpy() == (inside == 1)).all()
        density = data.read([1])[..., 0].numpy()
        np.testing.assert_array_equal(density, values["density"][1:2] * inside)
    problem = replace(copy.problem, num_context_frames=2)
    assert open_held_out(path, problem, "train").problem.masked
    assert read_context(path, problem).batch.mask.shape == (3, 8, 5)
