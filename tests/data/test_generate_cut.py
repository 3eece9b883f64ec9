"""Data whose grid is cut over processes: the same file as that of one process, to round-off, whole or not at all."""

import itertools
import json
import os
import subprocess
import sys
import time
import zlib
from pathlib import Path

import cut_generation
import h5py
import numpy as np
import pytest

from factformer._support.crc import Appended
from factformer.data import generate
from factformer.data.generate.plan import chosen_preset, require_cuttable
from factformer.data.store import open_dataset
from factformer.data.writer.part import joined, run_starts
from factformer.errors import UserError
from factformer.pdes import find_pde

SCRIPT = Path(cut_generation.__file__)
CAPABLE = 4


def together(script, size, *words):
    """What the first of several processes printed last."""
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), words[0], str(rank), str(size), *words[1:]],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    answers = [process.communicate(timeout=600) for process in processes]
    assert all(process.returncode == 0 for process in processes), "\n".join(error[-3000:] for _, error in answers)
    return json.loads(answers[0][0].splitlines()[-1])


def contents(path):
    found = {}
    with h5py.File(path) as file:
        file.visititems(lambda name, item: found.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None)
        return {name: value for name, value in found.items() if not name.startswith("checksums")}, dict(file.attrs)


@pytest.fixture(scope="module")
def cut(tmp_path_factory):
    out = tmp_path_factory.mktemp("cut")
    said = together(SCRIPT, CAPABLE, str(out / "rendezvous"), str(out))
    return out, said


@pytest.mark.parametrize("name", cut_generation.DATASETS)
def test_the_file_is_that_of_one_process(cut, tmp_path, name):
    equation, options, _ = cut_generation.DATASETS[name]
    (path,) = generate(equation, tmp_path, **options)
    ours, theirs = contents(cut[0] / "cut" / name / path.name), contents(path)
    assert ours[0].keys() == theirs[0].keys() and ours[1]["fingerprint"] == theirs[1]["fingerprint"]
    for key, values in theirs[0].items():
        if key == "digest":
            continue
        if values.dtype.kind != "f":
            np.testing.assert_array_equal(ours[0][key], values)
            continue
        scale = np.abs(values).max() if key.startswith("t") else 1.0
        np.testing.assert_allclose(ours[0][key], values, rtol=1e-6, atol=1e-5 * scale, err_msg=key)
    assert np.isfinite(open_dataset(cut[0] / "cut" / name / path.name).read(slice(None)).numpy()).all()  # checksums


def test_teams_make_the_same_trajectories(cut):
    ours, theirs = (contents(cut[0] / folder / "flow" / "train.hdf5")[0] for folder in ("teams", "cut"))
    fields = [values["t0_fields/vorticity"] for values in (ours, theirs)]
    np.testing.assert_allclose(*fields, atol=1e-5 * np.abs(fields[0]).max())
    np.testing.assert_array_equal(ours["scalars/reynolds"], theirs["scalars/reynolds"])


def test_all_processes_refuse_a_trajectory_that_blew_up_in_one_of_them(cut):
    out, said = cut
    assert said[0].startswith("burgers: trajectory 2") and "NaN or infinite values in frame 1" in said[0]
    assert set(said) == {said[0]}
    assert [note.name for note in (out / "bad" / ".test.hdf5.partial").glob("*.json")] == ["00000000-00000002.json"]


@pytest.mark.parametrize("name", ["smoke_buoyancy", "darcy_flow", "obstacle_flow", "vlasov_poisson"])
def test_other_solvers_refuse_to_be_cut(name):
    equation = find_pde(name)
    with pytest.raises(UserError, match=f"{name} cannot be cut over processes; leave out --domain"):
        require_cuttable(equation, chosen_preset(equation, "tiny"), 2)


def test_what_cannot_be_cut_is_said_before_anything_is_written(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="there is 1 process; add --devices 2"):
        generate("kolmogorov_flow", tmp_path / "data", preset="tiny", domain=2)
    with pytest.raises(UserError, match="cannot be cut over 2 processes"):
        generate("korteweg_de_vries", tmp_path / "data", preset="tiny", domain=2)
    with pytest.raises(UserError, match="4 stored points are too few"):
        generate("kolmogorov_flow", tmp_path / "data", preset="tiny", resolution=4, domain=8)
    with pytest.raises(UserError, match="30 points must be a multiple of 4"):
        generate(
            "kolmogorov_flow",
            tmp_path / "data",
            preset="tiny",
            resolution=30,
            simulation_resolution=60,
            settings=["downsampling=points"],
            domain=4,
        )
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(("cuts", "size"), [((3, 1, 1), 2), ((2, 3, 1), 2), ((1, 2, 1), 3), ((1, 1, 1), 1)])
def test_checksums_of_parts_make_up_that_of_the_whole(cuts, size):
    shape = (5, 7, 3)
    frames = np.random.default_rng(0).standard_normal((2, *shape, size)).astype("<f4")
    parts, seen = [], np.zeros((*shape, size), bool)
    for place in itertools.product(*[range(count) for count in cuts]):
        points = tuple(
            slice(points * at // count, points * (at + 1) // count)
            for points, at, count in zip(shape, place, cuts, strict=True)
        )
        starts = run_starts(shape, points)
        own = frames[(slice(None), *points)].reshape(2, len(starts), -1)
        for row, start in enumerate(starts):
            flat = frames[0].reshape(-1)[start * size : start * size + own.shape[2]]
            np.testing.assert_array_equal(flat, own[0, row])
            seen.reshape(-1)[start * size : start * size + own.shape[2]] = True
        crcs = np.array([[zlib.crc32(run.tobytes()) for run in frame] for frame in own], dtype=np.uint32)
        parts.append((starts, 4 * own.shape[2], crcs))
    assert seen.all()
    assert joined(parts).tolist() == [zlib.crc32(frame.tobytes()) for frame in frames]


def test_the_checksum_of_a_text_from_those_of_its_pieces():
    text = bytes(range(256)) * 50
    for cut_at in (0, 1, 4097, len(text)):
        first, second = (np.array([zlib.crc32(piece)], np.uint32) for piece in (text[:cut_at], text[cut_at:]))
        assert Appended(len(text) - cut_at)(first, second).tolist() == [zlib.crc32(text)]


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["first", "other"])
def test_a_killed_job_ends_and_resumes_to_the_same_bytes(tmp_path, victim):
    words = ["generate", "isotropic_turbulence", "--preset", "tiny", "--trajectories", "3", "--batch-size", "1"]
    options = ["--split", "test", "--resolution", "16", "--set", "num_frames=10", "--devices", "2", "--domain", "2"]
    command = [sys.executable, "-m", "factformer", *words, *options, "--out"]
    subprocess.run([*command, str(tmp_path / "whole")], check=True, timeout=600)
    job = subprocess.Popen([*command, str(tmp_path / "killed")], stderr=subprocess.PIPE, text=True)
    work = tmp_path / "killed" / ".test.hdf5.partial"
    while not list(work.glob("0*.json")):
        assert job.poll() is None
        time.sleep(0.05)
    children = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text(encoding="utf-8").split()
    os.kill(job.pid if victim == "first" else int(children[0]), 9)
    _, said = job.communicate(timeout=60)
    assert job.returncode != 0
    if victim == "other":
        last = said.strip().splitlines()[-1]
        assert "a process of the job was lost" in last or "of the job failed" in last
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{child}").exists() for child in children):
        assert time.monotonic() < deadline, "the other process lives on"
        time.sleep(0.2)
    subprocess.run([*command, str(tmp_path / "killed")], check=True, timeout=600)
    files = [(tmp_path / folder / "test.hdf5").read_bytes() for folder in ("whole", "killed")]
    assert files[0] == files[1]
