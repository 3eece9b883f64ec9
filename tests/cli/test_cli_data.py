"""The commands that make data, through the same parser as the command line."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest
import typer
import xarray
from typer.testing import CliRunner

from factformer.cli import data
from factformer.data import open_dataset
from factformer.errors import UserError


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer()
    app.command()(data.generate)
    app.command()(data.convert)
    return app


def run(app: typer.Typer, *words: str | Path) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    if isinstance(result.exception, UserError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def test_generate_writes_all_splits_and_tells(app: typer.Typer, tmp_path: Path) -> None:
    words = (
        "generate",
        "kolmogorov_flow",
        "--out",
        tmp_path,
        "--preset",
        "tiny",
        "--trajectories",
        "1",
        "--resolution",
        "16",
        "--simulation-resolution",
        "30",
        "--set",
        "reynolds=50",
        "--set",
        "num_frames=4",
        "--set",
        "warmup=0",
    )
    text = run(app, *words)
    assert len(text.splitlines()) == 3
    assert "train split, 1 trajectory of 4 frames, vorticity on 16 x 16" in text
    stored = open_dataset(tmp_path, "valid")
    assert stored.provenance["parameters"]["reynolds"] == 50
    assert stored.problem.grid.shape == (16, 16)
    answer = json.loads(run(app, *words, "--json"))  # the same again is left as it is
    assert [entry["split"] for entry in answer["files"]] == ["train", "valid", "test"]
    assert answer["files"][1]["fingerprint"] == stored.fingerprint


def test_generate_refuses_wrong_words(app: typer.Typer, tmp_path: Path) -> None:
    words = ("generate", "kolmogorov_flow", "--out", tmp_path, "--preset", "tiny")
    for extra, message in [
        (("--set", "reynold=5"), "did you mean 'reynolds'"),
        (("--set", "num_frames=0"), "num_frames"),
        (("--set", "warmup=0.03"), "whole number of frame intervals"),
        (("--split", "tests"), "did you mean 'test'"),
        (("--preset", "tinny"), "did you mean 'tiny'"),
    ]:
        with pytest.raises(UserError, match=message):
            run(app, *words, *extra)
    assert not list(tmp_path.iterdir())


def test_convert_reads_fields_layout_and_range(app: typer.Typer, tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(5, 12, 10, 30)).astype("f4")
    np.savez(tmp_path / "run.npz", w=values, other=values[0])
    text = run(
        app,
        "convert",
        tmp_path / "run.npz",
        "--problem",
        "kolmogorov_flow",
        "--out",
        tmp_path / "test.hdf5",
        "--field",
        "vorticity=w",
        "--layout",
        "nxyt",
        "--trajectories",
        "1:4",
        "--set",
        "frame_dt=0.5",
        "--json",
    )
    (entry,) = json.loads(text)["files"]
    assert (entry["trajectories"], entry["frames"], entry["grid"], entry["split"]) == (
        3,
        30,
        [12, 10],
        "test",
    )
    stored = open_dataset(entry["path"])
    assert np.array_equal(stored.read([0])[0, ..., 0], np.moveaxis(values[1], -1, 0))
    assert stored.problem.frame_dt == 0.5
    with pytest.raises(UserError, match="FIELD=ARRAY"):
        run(app, "convert", tmp_path / "run.npz", "--out", tmp_path / "x.hdf5", "--field", "vorticity")


def test_convert_tells_what_it_assumed_and_left_out(app: typer.Typer, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "2D_run.hdf5", "w") as file:
        file["density"], file["force"] = np.zeros((2, 6, 8, 8)), np.zeros((2, 8, 8))
        for name, size in (("x", 8), ("y", 8), ("t", 7)):
            file[f"{name}-coordinate"] = (np.arange(size) + 0.5) / 8
    words = ("convert", tmp_path / "2D_run.hdf5", "--out")
    text = run(app, *words, tmp_path / "a")
    assert "on 8 x 8 (x periodic, y periodic); assumed, --set changes it: periodic, boundary; left out: force" in text
    text = run(app, *words, tmp_path / "b", "--set", "periodic=[true, false]", "--set", "boundary=zero")
    assert "on 8 x 8 (x periodic, y cells; boundary zero); left out: force" in text


def test_convert_calls_uneven_only_what_is(app: typer.Typer, tmp_path: Path) -> None:
    for name, x in (("even", np.linspace(-1, 1, 8)), ("stretched", np.arange(8) ** 2)):
        with h5py.File(tmp_path / f"1D_{name}.hdf5", "w") as file:
            file["density"], file["t-coordinate"], file["x-coordinate"] = np.zeros((2, 6, 8)), np.arange(6), x
    words = ("--set", "periodic=false", "--set", "boundary=zero", "--out")
    assert "on 8 (x nodes; " in run(app, "convert", tmp_path / "1D_even.hdf5", *words, tmp_path / "a")
    assert "on 8 (x uneven; " in run(app, "convert", tmp_path / "1D_stretched.hdf5", *words, tmp_path / "b")


def test_convert_tells_how_much_a_mask_leaves(app: typer.Typer, tmp_path: Path) -> None:
    inside = np.ones((3, 8, 5))
    inside[0, :2] = 0
    np.savez(tmp_path / "run.npz", u=np.random.default_rng(0).normal(size=(3, 6, 8, 5)), inside=inside)
    (tmp_path / "flow.yaml").write_text("{name: flow, num_axes: 2, state: {u: 1}, periodic: [true, false]}")
    words = ("convert", tmp_path / "run.npz", "--problem", tmp_path / "flow.yaml", "--mask", "inside", "--out")
    assert "a mask: 91.7 % of points inside" in run(app, *words, tmp_path / "a")
    (entry,) = json.loads(run(app, *words, tmp_path / "b", "--json"))["files"]
    assert entry["inside"] == pytest.approx(110 / 120)


def test_convert_tells_when_there_are_fewer_trajectories_than_asked_for(app: typer.Typer, tmp_path: Path) -> None:
    np.savez(tmp_path / "run.npz", u=np.random.default_rng(0).normal(size=(3, 6, 8, 5)))
    (tmp_path / "flow.yaml").write_text("{name: flow, num_axes: 2, state: {u: 1}, periodic: [true, false]}")
    words = ("convert", tmp_path / "run.npz", "--problem", tmp_path / "flow.yaml", "--trajectories")
    for asked, told in (
        ("100", "3 trajectories (all there are of :100) of 6 frames"),
        ("2:", "1 trajectory of 6 frames"),
    ):
        assert told in run(app, *words, asked, "--out", tmp_path / f"out-{asked[0]}")
    with pytest.raises(UserError, match=r"a problem file with --problem \(docs/how-to/own-data\.md"):
        run(app, "convert", tmp_path / "run.npz", "--out", tmp_path / "c")


def test_convert_tells_the_axes_and_the_box_of_the_file(app: typer.Typer, tmp_path: Path) -> None:
    u = np.random.default_rng(0).normal(size=(6, 5, 8, 3))
    coordinates = {"time": 0.1 * np.arange(6), "lat": 0.25 * np.arange(5), "lon": 0.5 * np.arange(8)}
    given = xarray.Dataset({"u": (("time", "lat", "lon", "sample"), u)}, coords=coordinates)
    given.to_netcdf(tmp_path / "run.nc", engine="h5netcdf")
    for name, extent, note in (
        ("a", "[1, 4]", ""),
        ("b", "[4, 1]", "; box as you say, the file's coordinates span 1 x 4"),
    ):
        words = ("--set", "periodic=[false, true]", "--set", f"extent={extent}", "--out", tmp_path / name)
        text = run(app, "convert", tmp_path / "run.nc", *words)
        assert "u read as time lat lon sample" in text and ("box as you say" in text) == bool(note) and note in text


@pytest.mark.parametrize("command", ["generate", "convert"])
def test_help_shows_an_example(app: typer.Typer, command: str) -> None:
    assert f"Example: factformer {command}" in run(app, command, "--help")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--static", "bed"], "--static is given as NAME=ARRAY, such as depth=bed; got 'bed'"),
        (["--forcing", "=q"], "--forcing is given as NAME=ARRAY"),
        (["--parameter", "reynolds"], "--parameter is given as NAME=ARRAY or NAME=NUMBER"),
        (["--field", "rho"], "--field is given as FIELD=ARRAY, such as density=rho"),
        (["--parameter", "reynolds=nan"], "--parameter reynolds=nan is no finite number"),
        (["--parameter", "reynolds=-inf"], "--parameter reynolds=-inf is no finite number"),
        *(
            (["--" + name, "a=b", "--" + name, "a=c"], f"--{name} a= is given twice, as 'b' and 'c'")
            for name in ("static", "forcing", "parameter", "field")
        ),
    ],
)
def test_parts_that_say_nothing_or_two_things_are_refused(app, tmp_path, words, message):
    with pytest.raises(UserError) as refused:
        run(app, "convert", tmp_path / "flow.npz", "--out", tmp_path / "train.hdf5", *words)
    assert message in str(refused.value)
