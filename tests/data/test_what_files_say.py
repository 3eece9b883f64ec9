"""What a file says about itself is kept where the user says nothing, and nothing of it is overruled in silence."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
import yaml
from well_files import write_well_file

from factformer.cli import main
from factformer.data import convert, generate, import_dataset, open_dataset
from factformer.data.layout import Contents
from factformer.data.writer import SplitWriter
from factformer.errors import UserError
from factformer.grid import Grid
from small_data import generate_small_flow

FLOW = {"name": "flow", "num_axes": 2, "state": {"density": 1}}


def write_pdebench(path: Path, x: np.ndarray, y: np.ndarray | None, **arrays: np.ndarray) -> Path:
    values = np.random.default_rng(0).normal(size=(3, 6, len(x), 6)).astype("f4")
    with h5py.File(path, "w") as file:
        file["density"] = values
        file["x-coordinate"] = x
        if y is not None:
            file["y-coordinate"] = y
        file["t-coordinate"] = 0.05 * np.arange(7)
        for name, array in arrays.items():
            file[name] = array
    return path


def even(size: int, length: float = 1.0, first: float = 0.5) -> np.ndarray:
    return (np.arange(size) + first) * length / size


@pytest.fixture
def flow(tmp_path: Path) -> Path:
    settings = ["frame_dt=0.25", "warmup=1", "num_frames=12"]
    return generate_small_flow(tmp_path / "own", splits=["train"], trajectories=3, settings=settings) / "train.hdf5"


def test_all_that_our_file_knows_of_its_trajectories_is_kept(flow: Path, tmp_path: Path) -> None:
    out = convert(flow, tmp_path / "part", trajectories=slice(1, None), settings=["horizon=1"])
    with h5py.File(flow) as whole, h5py.File(out) as part:
        assert part["seeds"][:].tolist() == whole["seeds"][1:].tolist()
        assert part["dimensions/time"][:].tolist() == [1 + 0.25 * k for k in range(12)]
        assert part["scalars"].attrs["field_names"].tolist() == whole["scalars"].attrs["field_names"].tolist()
        assert part.attrs["reynolds"] == whole.attrs["reynolds"]
    before, after = open_dataset(flow).provenance, open_dataset(out).provenance
    assert before.items() <= after.items()
    said = convert(flow, tmp_path / "said", "kolmogorov_flow", settings=["frame_dt=0.25", "parameters.drag=0.3"])
    with h5py.File(said) as file:
        assert file.attrs["drag"] == 0.3


def test_parameters_can_be_said_of_a_file_whose_pde_is_of_the_catalog(flow: Path, tmp_path: Path) -> None:
    out = convert(flow, tmp_path / "said", settings=["parameters.drag=0.3", "horizon=1"])
    before, after = open_dataset(flow).provenance["parameters"], open_dataset(out).provenance["parameters"]
    assert after == {**before, "drag": 0.3}
    theirs = tmp_path / "theirs.hdf5"
    write_well_file(theirs)
    with pytest.raises(UserError, match="and 'invented' is none; name one"):
        convert(theirs, tmp_path / "bad", settings=["parameters.drag=0.3"])
    with h5py.File(theirs, "r+") as file:
        file.attrs["dataset_name"] = "kolmogorov_flow"
    with h5py.File(convert(theirs, tmp_path / "theirs", settings=["parameters={reynolds: 500}"])) as file:
        assert (file.attrs["reynolds"], file.attrs["viscosity"]) == (500, 0.1)
    for path in (flow, theirs):
        for setting, message in (
            ("parameters.drg=0.3", "did you mean 'parameters.drag'"),
            ("parameters=3", "parameters are names with values"),
            ("parameter.drag=3", "unknown section 'parameter'; did you mean 'parameters'"),
        ):
            with pytest.raises(UserError, match=message):
                import_dataset(path, settings=[setting])


def test_what_a_second_conversion_is_told_is_no_longer_assumed(tmp_path: Path) -> None:
    first = convert(write_pdebench(tmp_path / "2D_CFD.hdf5", even(8), even(6)), tmp_path / "first")
    for settings, assumed in ((["horizon=1"], ["periodic", "boundary"]), (["periodic=true"], ["boundary"])):
        again = convert(first, tmp_path / settings[0], settings=settings)
        assert open_dataset(again).provenance["assumed"] == assumed
    last = convert(again, tmp_path / "last", settings=["boundary=periodic"])
    assert "assumed" not in open_dataset(last).provenance
    grid = open_dataset(first).problem.grid
    assert open_dataset(first, grid=grid).provenance["assumed"] == ["boundary"]


def test_files_of_different_parameters_share_only_what_is_alike(decay, tmp_path: Path) -> None:
    for name, rate in (("a", 0.5), ("b", 1.0)):
        (path,) = generate(decay, tmp_path / name, splits=["train"], parameters={"rate": rate})
        (tmp_path / "all" / "train").mkdir(parents=True, exist_ok=True)
        path.rename(tmp_path / "all" / "train" / f"{name}.hdf5")
    together = open_dataset(tmp_path / "all").provenance
    assert together["parameters"] == {}
    assert together["pde"] == "decay"


def test_a_pde_of_the_catalog_does_not_overrule_a_file(flow: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"frame interval 0.0625 expected, 0.25 found; say which one holds with --set"):
        convert(flow, tmp_path / "out", "kolmogorov_flow")
    for setting, expected in (("frame_dt=0.25", 0.25), ("frame_dt=0.5", 0.5)):
        data = import_dataset(flow, "kolmogorov_flow", settings=[setting])
        assert data.problem.frame_dt == expected
        assert (data.problem.num_context_frames, data.problem.horizon) == (10, 2)  # as the file says
    named = import_dataset(flow, {"name": "mine", "num_axes": 2, "state": {"vorticity": 1}})
    assert named.problem.frame_dt == 0.25
    assert named.problem.grid == open_dataset(flow).problem.grid


def test_a_problem_that_says_little_leaves_the_grid_of_a_foreign_file(tmp_path: Path) -> None:
    write_well_file(tmp_path / "invented.hdf5")
    inferred = open_dataset(tmp_path / "invented.hdf5").problem
    data = import_dataset(tmp_path / "invented.hdf5", FLOW)
    assert (data.problem.grid, data.problem.boundary, data.problem.frame_dt) == (inferred.grid, "zero", 0.5)
    other = import_dataset(tmp_path / "invented.hdf5", {**FLOW, "extent": [6.0, 2.0], "frame_dt": 1.0})
    assert other.problem.grid.extent == (6.0, 2.0)
    assert other.problem.grid.periodic == (True, False)
    assert other.problem.frame_dt == 1.0
    out = convert(tmp_path / "invented.hdf5", tmp_path / "out", FLOW)
    assert open_dataset(out).provenance["left_out"] == ["height", "velocity", "stress"]
    with h5py.File(out) as file:
        assert file["dimensions/time"][0] == 10
        assert file.attrs["viscosity"] == 0.1


def test_times_of_a_file_that_a_user_overrules_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = np.random.default_rng(0).normal(size=(1, 6, 5, 4)).astype("f4")
    (tmp_path / "flow.yaml").write_text(yaml.safe_dump({**FLOW, "frame_dt": 0.1, "periodic": True}), encoding="utf-8")
    told = {"even": 0.2 * np.arange(6), "right": 0.1 * np.arange(6)}
    for name, times in told.items():
        np.savez(tmp_path / f"{name}.npz", density=values, t=times)
        out = tmp_path / name / "train.hdf5"
        with pytest.raises(SystemExit) as stopped:
            main(
                ["convert", str(tmp_path / f"{name}.npz"), "--problem", str(tmp_path / "flow.yaml"), "--out", str(out)]
            )
        assert not stopped.value.code
    even, right = capsys.readouterr().out.splitlines()
    assert "1 trajectory of 6 frames" in even and "frames 0.1 apart" in even
    assert even.endswith("; frame_dt as you say, the file holds frames 0.2 apart")
    assert "as you say" not in right


def test_pdebench_coordinates_hold_where_a_problem_says_nothing(tmp_path: Path) -> None:
    path = write_pdebench(tmp_path / "2D_CFD.hdf5", even(8), even(6, 2.0))
    data = import_dataset(path, {**FLOW, "boundary": "zero"})
    assert data.problem.grid == Grid((8, 6), data.problem.grid.extent, False, "cells")
    assert data.problem.grid.extent == pytest.approx((1.0, 2.0))
    assert data.problem.frame_dt == pytest.approx(0.05)
    assert import_dataset(path, {**FLOW, "frame_dt": 0.5, "extent": 3.0}).problem.grid.extent == (3.0, 3.0)
    with pytest.raises(UserError, match=r"grid extent .* expected"):
        import_dataset(path, "kolmogorov_flow", fields={"vorticity": "density"})


@pytest.mark.parametrize(
    ("x", "setting", "extent", "points"),
    [
        (even(16), "periodic=false", 1.0, "cells"),
        (even(16, 2.0, 0.0), "periodic=true", 2.0, "nodes"),
        (even(16, 2.0, 0.0), "periodic=false", 1.875, "nodes"),
        (even(16), "points=nodes", 1.0, "nodes"),
    ],
)
def test_a_changed_boundary_is_read_from_the_coordinates_again(
    x: np.ndarray, setting: str, extent: float, points: str, tmp_path: Path
) -> None:
    grid = import_dataset(write_pdebench(tmp_path / "2D_CFD.hdf5", x, even(6)), settings=[setting]).problem.grid
    assert (grid.extent[0], grid.points[0]) == (pytest.approx(extent), points)
    assert grid.is_uniform(0)


def test_a_stretched_axis_gets_no_invented_period(tmp_path: Path) -> None:
    path = write_pdebench(tmp_path / "2D_CFD.hdf5", np.linspace(0, 1, 8) ** 2, even(6))
    with pytest.raises(UserError, match=r"axis 0 of .*2D_CFD.hdf5 is not evenly spaced"):
        import_dataset(path)
    assert import_dataset(path, settings=["periodic=false"]).problem.grid.axis(0)[1] == pytest.approx(1 / 49)
    assert import_dataset(path, settings=["extent=1.2"]).problem.grid.extent[0] == 1.2


def test_the_period_of_uneven_points_can_be_said_and_taken_back(tmp_path: Path) -> None:
    write_well_file(tmp_path / "theirs.hdf5")
    with h5py.File(tmp_path / "theirs.hdf5", "r+") as file:
        file["dimensions/x"][3] += 0.1
        x = file["dimensions/x"][:]
    with pytest.raises(UserError, match="leaves its period open: say extent, or periodic=false"):
        open_dataset(tmp_path / "theirs.hdf5")
    assert open_dataset(tmp_path / "theirs.hdf5", extent=[7.0, 2.0]).problem.grid.extent == (7.0, 2.0)
    own = convert(tmp_path / "theirs.hdf5", tmp_path / "own.hdf5", settings=["extent=[7.0, 2.0]"])
    assert import_dataset(own, settings=["periodic=[true, false]"]).problem.grid == open_dataset(own).problem.grid
    walled = import_dataset(own, settings=["periodic=false"]).problem.grid
    assert walled.periodic == (False, False)
    assert walled.extent == pytest.approx((x[-1] - x[0], 2.0))


def test_what_pdebench_files_lack_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no y-coordinate"):
        import_dataset(write_pdebench(tmp_path / "2D_CFD.hdf5", even(8), None))
    assert import_dataset(tmp_path / "2D_CFD.hdf5", settings=["extent=2.0"]).problem.grid.extent == (2.0, 2.0)
    with h5py.File(tmp_path / "grouped.h5", "w") as file:
        for name, length in (("0000", 5), ("0001", 4)):
            file[f"{name}/data"] = np.zeros((length, 8, 6, 1))
    with pytest.raises(UserError, match=r"different shapes: 0000/data \(5, 8, 6, 1\), 0001/data \(4, 8, 6, 1\)"):
        import_dataset(tmp_path / "grouped.h5")
    path = write_pdebench(tmp_path / "2D_more.hdf5", even(8), even(6), force=np.zeros((3, 8, 6)))
    provenance = import_dataset(path).provenance
    assert provenance["assumed"] == ["periodic", "boundary"] and provenance["left_out"] == ["force"]


def test_fingerprints_tell_foreign_data_apart(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(4, 6, 8, 6)).astype("f4")
    np.savez(tmp_path / "run.npz", u=values, v=values)
    prints = {import_dataset(tmp_path / "run.npz", FLOW, fields={"density": name}).fingerprint for name in "uv"}
    values[2:] += 1
    np.savez(tmp_path / "run.npz", u=values, v=values)
    prints |= {import_dataset(tmp_path / "run.npz", FLOW, fields={"density": name}).fingerprint for name in "uv"}
    assert len(prints) == 4
    for seed in (1, 2):
        write_well_file(tmp_path / f"{seed}.hdf5")
        with h5py.File(tmp_path / f"{seed}.hdf5", "r+") as file:
            file["t1_fields/velocity"][1] *= seed
    again = [open_dataset(tmp_path / f"{seed}.hdf5").fingerprint for seed in (1, 2, 1)]
    assert again[0] == again[2] != again[1]


def test_an_interrupted_conversion_notices_another_source(tmp_path: Path) -> None:
    random, source, out = np.random.default_rng(0), tmp_path / "run.npy", tmp_path / "out" / "train.hdf5"
    np.save(source, random.normal(size=(2, 6, 8, 6)).astype("f4"))
    data = import_dataset(source, FLOW)
    provenance = {"source": "run.npy", "trajectories": ":", "fingerprint": data.fingerprint}
    writer = SplitWriter(out, Contents(data.problem, "train", 2, 6, provenance=provenance))
    writer.prepare()
    with writer.batch(range(1)) as output:
        for frame in data.read([0]).unbind(1):
            output.write(frame.numpy())
    writer.release()
    np.save(source, random.normal(size=(2, 6, 8, 6)).astype("f4"))
    with pytest.raises(UserError, match="unfinished work of other settings"):
        convert(source, out, FLOW)
    convert(source, out, FLOW, overwrite=True)
    assert np.array_equal(open_dataset(out).read(slice(None))[..., 0], np.load(source))


def test_splits_are_those_that_files_say(decay, tmp_path: Path) -> None:
    generate(decay, tmp_path / "own")
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "train.hdf5").write_bytes((tmp_path / "own" / "test.hdf5").read_bytes())
    for path in (tmp_path / "copy", tmp_path / "copy" / "train.hdf5"):
        with pytest.raises(UserError, match="called after the split 'train', but says it is 'test'"):
            open_dataset(path)
    assert convert(tmp_path / "own" / "test.hdf5", tmp_path / "again").name == "test.hdf5"
    with pytest.raises(UserError, match="asked for 'valid'"):
        convert(tmp_path / "own" / "test.hdf5", tmp_path / "test.hdf5", split="valid")
    for split in ("train", "test"):
        write_well_file(tmp_path / "well" / "data" / split / "1.hdf5", seed=len(split))
    foreign = open_dataset(tmp_path / "well" / "data" / "test" / "1.hdf5")
    assert foreign.split == "test"
    assert foreign.normalizer().to_dict() == open_dataset(tmp_path / "well").normalizer().to_dict()
    (tmp_path / "own" / "train").mkdir()
    for name in ("train", "test"):
        (tmp_path / "own" / f"{name}.hdf5").rename(tmp_path / "own" / "train" / f"{name}-part.hdf5")
    with pytest.raises(UserError, match=r"different splits: test-part.hdf5 \(test\), train-part.hdf5 \(train\)"):
        open_dataset(tmp_path / "own")


def test_a_converted_file_is_of_the_split_of_its_folder(tmp_path: Path) -> None:
    np.save(tmp_path / "run.npy", np.random.default_rng(0).normal(size=(2, 24, 8, 6)).astype("f4"))
    for split in ("train", "test"):
        convert(tmp_path / "run.npy", tmp_path / "ms" / split / "part0.hdf5", FLOW)
        assert open_dataset(tmp_path / "ms", split).split == split
    assert open_dataset(convert(tmp_path / "run.npy", tmp_path / "test" / "valid.hdf5", FLOW)).split == "valid"
    astray = convert(tmp_path / "run.npy", tmp_path / "ms" / "valid" / "part0.hdf5", FLOW, split="test")
    assert open_dataset(astray).split == "test"
    with pytest.raises(UserError, match=r"says it is 'test': move it, or convert it again with --split valid"):
        open_dataset(tmp_path / "ms", "valid")


def test_a_split_that_is_asked_for_is_that_of_the_file_or_an_error(decay, tmp_path: Path) -> None:
    foreign = tmp_path / "well" / "data" / "test" / "1.hdf5"
    values = write_well_file(foreign)
    data = open_dataset(foreign, "train", state=["density"])
    assert data.split == "train"
    assert float(data.normalizer().state_std[0]) == pytest.approx(values["density"].std(), rel=1e-5)
    generate(decay, tmp_path / "own")
    own = (tmp_path / "own" / "test.hdf5").rename(tmp_path / "own" / "part.hdf5")
    assert open_dataset(own).split == open_dataset(own, "test").split == "test"
    for path in (own, tmp_path / "own" / "valid.hdf5"):
        with pytest.raises(UserError, match=r"split 'train' asked for, but .* is the (test|valid) split"):
            open_dataset(path, "train")
    with pytest.raises(UserError, match="unknown split 'trian'; did you mean 'train'"):
        open_dataset(foreign, "trian")


def test_coordinates_of_a_problem_file(tmp_path: Path) -> None:
    frames = np.random.default_rng(0).normal(size=(3, 8, 8, 5)).astype("f4")
    np.save(tmp_path / "run.npy", frames)
    walls = [-1.0, -0.9, 0.0, 0.9, 1.0]
    values = {**FLOW, "periodic": [True, False], "extent": [3.0, 2.0], "coordinates": [None, walls]}
    (tmp_path / "channel.yaml").write_text(yaml.safe_dump(values))
    out = convert(tmp_path / "run.npy", tmp_path / "out", tmp_path / "channel.yaml")
    grid = open_dataset(out).problem.grid
    assert grid == Grid((8, 5), (3.0, 2.0), (True, False), coordinates=[None, walls])
    both = {**FLOW, "coordinates": [np.arange(8.0).tolist(), walls]}
    assert import_dataset(tmp_path / "run.npy", both).problem.grid == Grid.from_axes(both["coordinates"])
    for change, message in (
        ({"coordinates": [None, walls[1:]]}, "5 points, coordinates were given for 4"),
        ({"extent": [3.0, 5.0]}, "extent says 5"),
        ({"coordinates": [None, walls[::-1]]}, "strictly increasing"),
        ({"periodic": True}, "its period in extent must be larger than 2"),
    ):
        with pytest.raises(UserError, match=message):
            import_dataset(tmp_path / "run.npy", {**values, **change})
    with pytest.raises(UserError, match="is not evenly spaced"):
        import_dataset(tmp_path / "run.npy", {**FLOW, "periodic": True, "coordinates": [None, walls]})
    np.save(tmp_path / "square.npy", frames[:, :, :5])
    with pytest.raises(UserError, match="is no grid of the same box"):
        import_dataset(tmp_path / "square.npy", {**FLOW, "coordinates": [walls, walls]}, resolution=3)


def test_what_is_asked_for_must_fit_the_frames_and_the_boundary(flow: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "run.npy", np.zeros((2, 24, 8, 6), dtype="f4"))
    long = {**FLOW, "num_context_frames": 30}
    for arguments, message in (
        ((tmp_path / "run.npy", long), "num_context_frames=30 asked for, but of 24 frames at most 23"),
        ((tmp_path / "run.npy", {**FLOW, "horizon": 21}), "horizon=21 asked for, but of 24 frames at most 20"),
        ((tmp_path / "run.npy", {**FLOW, "periodic": True, "boundary": "zero"}), "every axis is periodic"),
    ):
        with pytest.raises(UserError, match=message):
            import_dataset(*arguments)
    for setting, message in (("num_context_frames=12", "at most 11"), ("boundary=reflect", "every axis is periodic")):
        with pytest.raises(UserError, match=message):
            import_dataset(flow, settings=[setting])
    assert import_dataset(flow, settings=["num_context_frames=11"]).problem.horizon == 1
    catalog = import_dataset(tmp_path / "run.npy", "kolmogorov_flow").problem
    assert (catalog.num_context_frames, catalog.horizon) == (10, 14)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("extent=0", "extent of axis 0 must be a positive length, got 0"),
        ("extent=[1.0, 0.0]", "extent of axis 1 must be a positive length, got 0"),
        ("extent=-2.0", "extent of axis 0 must be a positive length, got -2"),
        ("num_context_frames=0", "num_context_frames=0 asked for: it is a number of frames, 1 or more"),
        ("horizon=-3", "horizon=-3 asked for: it is a number of frames, 1 or more"),
        ("horizon=0", "horizon=0 asked for"),
        ("points=''", "points of axis 0 must be one of"),
    ],
)
def test_values_that_mean_nothing_are_refused_and_not_replaced(setting: str, message: str, tmp_path: Path) -> None:
    write_well_file(tmp_path / "theirs.hdf5")
    pdebench = write_pdebench(tmp_path / "2D_CFD.hdf5", even(8), even(6))
    own = convert(pdebench, tmp_path / "own.hdf5")
    np.save(tmp_path / "run.npy", np.zeros((2, 24, 8, 6), dtype="f4"))
    for arguments in ((tmp_path / "theirs.hdf5",), (pdebench,), (own,), (tmp_path / "run.npy", FLOW)):
        with pytest.raises(UserError, match=message):
            import_dataset(*arguments, settings=[setting])
    with pytest.raises(UserError, match="takes no layout, fields or resolution"):
        import_dataset(own, resolution=0)


def test_one_array_is_not_both_input_and_output(tmp_path: Path) -> None:
    np.save(tmp_path / "s.npy", np.random.default_rng(0).random((4, 9, 9)))
    with pytest.raises(UserError, match="no array 'solution'"):
        import_dataset(tmp_path / "s.npy", "darcy_flow")
    np.save(tmp_path / "solution.npy", np.random.default_rng(0).random((4, 9, 9)))
    with pytest.raises(UserError, match="no array 'coefficient'"):
        import_dataset(tmp_path / "solution.npy", "darcy_flow")


def test_a_single_trajectory_needs_no_axis_of_trajectories(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(7, 8, 6, 2)).astype("f4")
    np.save(tmp_path / "scalar.npy", values[..., 0])
    np.save(tmp_path / "vector.npy", values)
    np.save(tmp_path / "last.npy", np.moveaxis(values[..., 0], 0, -1))
    for name, problem, layout in (
        ("scalar", FLOW, None),
        ("last", FLOW, "xyt"),
        ("vector", {**FLOW, "state": {"velocity": 2}}, None),
    ):
        data = import_dataset(tmp_path / f"{name}.npy", problem, layout=layout)
        expected = torch.from_numpy(values if name == "vector" else values[..., :1])
        assert torch.equal(data.read([0])[0], expected)
        assert data.num_trajectories == 1
    np.save(tmp_path / "flat.npy", values[0, ..., 0])
    with pytest.raises(UserError, match="by a layout, such as xy: a letter for each"):
        import_dataset(tmp_path / "flat.npy", FLOW)
    assert import_dataset(tmp_path / "flat.npy", FLOW, layout="xy").num_frames == 1


@pytest.mark.parametrize("what", ["problem", "provenance", "format", "extent", "field", "entry"])
def test_damaged_metadata_are_one_line_with_the_name_of_the_file(decay, what: str, tmp_path: Path) -> None:
    (path,) = generate(decay, tmp_path, splits=["train"])
    with h5py.File(path, "r+") as file:
        if what == "field":
            del file["t0_fields/pressure"]
        elif what == "entry":
            problem = json.loads(file.attrs["problem"])
            del problem["grid"]
            file.attrs["problem"] = json.dumps(problem)
        elif what == "extent":
            file.attrs["problem"] = file.attrs["problem"].replace("2.0", "-2.0")
        else:
            file.attrs[what] = "{broken"
    with pytest.raises(UserError, match=r"train\.hdf5") as error:
        open_dataset(path)
    assert "\n" not in str(error.value)


def test_a_file_that_promises_more_trajectories_than_it_holds_is_named(tmp_path: Path) -> None:
    write_well_file(tmp_path / "invented.hdf5", num_trajectories=3)
    with h5py.File(tmp_path / "invented.hdf5", "r+") as file:
        file.attrs["n_trajectories"] = 5
    with pytest.raises(UserError, match=r"invented.hdf5 is damaged: t0_fields/density .* does not hold 5 trajectories"):
        open_dataset(tmp_path / "invented.hdf5")
