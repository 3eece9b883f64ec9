"""Files of strangers: damaged, misleading, or leading elsewhere. Each test is named after the defect it keeps away."""

from __future__ import annotations

import io
import json
import os
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest
import xarray
import yaml
from fake_pdes import Decay
from scipy.io import savemat
from well_files import write_well_file

from factformer._support.documents import parse_json, parse_yaml
from factformer.data import convert, generate, import_dataset, open_dataset
from factformer.data import opening as opening_module
from factformer.data.formats.arrays import open_arrays
from factformer.data.opening import open_hdf5
from factformer.errors import UserError
from factformer.grid import Grid
from factformer.prediction import read_context
from factformer.problem import Field, Problem

FLOW = {"name": "flow", "num_axes": 2, "state": {"density": 1}, "num_context_frames": 2, "horizon": 3}


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape or (3, 6, 8, 5)).astype("f4")


@pytest.fixture
def ours(decay: Decay, tmp_path: Path) -> Path:
    """A training split that we have generated."""
    return generate(decay, tmp_path / "ours", splits=["train"])[0]


def flip(path: Path, where: int) -> None:
    content = bytearray(path.read_bytes())
    content[where] ^= 1
    path.write_bytes(content)


# Checked on arrival


def test_a_flipped_bit_in_the_values_is_noticed_when_they_are_read(ours: Path) -> None:
    before = open_dataset(ours).read([2])
    with h5py.File(ours) as file:
        values = file["t0_fields/density"] if "density" in file["t0_fields"] else next(iter(file["t0_fields"].values()))
        place = values.id.get_offset() + values[:2].nbytes + 5
    flip(ours, place)
    data = open_dataset(ours)
    data.read([0])
    with pytest.raises(UserError, match=r"damaged at .*frame 0 of trajectory 2 does not fit its checksum"):
        data.read([2])
    data.files[0].close()  # HDF5 keeps what it has read while a file is open
    flip(ours, place)
    assert np.array_equal(open_dataset(ours).read([2]), before)


@pytest.mark.parametrize("attribute", ["problem", "provenance", "n_trajectories"])
def test_changed_attributes_are_noticed(ours: Path, attribute: str) -> None:
    with h5py.File(ours, "r+") as file:
        value = file.attrs[attribute]
        file.attrs[attribute] = value.replace("0.", "1.", 1) if isinstance(value, str) else value - 1
    with pytest.raises(UserError, match="damaged or changed after it was written"):
        open_dataset(ours)


@pytest.mark.parametrize("mark", ["fingerprint", "problem", "factformer_version", "n_trajectories"])
def test_a_file_of_ours_that_lost_a_mark_is_not_taken_for_somebody_elses(ours: Path, mark: str) -> None:
    with h5py.File(ours, "r+") as file:
        del file.attrs[mark]
    with pytest.raises(UserError, match="damaged"):
        open_dataset(ours)
    with pytest.raises(UserError, match="damaged"):
        convert(ours, ours.parent / "again")


def test_damaged_links_are_named_where_only_the_kind_of_a_file_is_looked_at(ours: Path, monkeypatch) -> None:
    def broken(*_: object) -> bool:
        raise RuntimeError("Unable to synchronously check link existence (free block size is zero?)")

    with h5py.File(ours, "r+") as file:
        for mark in ("factformer_version", "fingerprint"):
            del file.attrs[mark]
    monkeypatch.setattr(h5py.Group, "__contains__", broken)
    with pytest.raises(UserError, match=r"train.hdf5 is damaged: .* link existence"):
        convert(ours, ours.parent / "again")


def test_an_npy_file_that_claims_more_than_it_holds_is_refused_without_a_warning(tmp_path: Path, recwarn) -> None:
    path = tmp_path / "frames.npy"
    np.save(path, noise())
    content = path.read_bytes()
    claim = b"(2147483648, 2147483648, 8), }"
    start = content.index(b"(3, 6, 8, 5), }")
    path.write_bytes(content[:start] + claim + content[start + len(claim) :])
    with pytest.raises(UserError, match=r"frames.npy is damaged: it holds less than its shape \(2147483648, "):
        open_arrays(path)
    assert not recwarn.list


def test_a_problem_file_without_a_field_is_one_line(tmp_path: Path) -> None:
    np.save(tmp_path / "frames.npy", noise())
    with pytest.raises(UserError, match=r"state: name at least one field"):
        convert(tmp_path / "frames.npy", tmp_path / "out", {**FLOW, "state": {}}, layout="ntxy")


def test_a_mask_that_is_neither_there_nor_not_is_refused() -> None:
    with pytest.raises(UserError, match="masked is true or false, got '1e999'"):
        Problem("flow", Grid((8, 8), (1.0, 1.0), (True, True)), (Field("u"),), masked="1e999")  # type: ignore[arg-type]


def without_digest(path: Path, **statistics: list[float]) -> None:
    """Make the file one of before there were checksums, with other statistics."""
    with h5py.File(path, "r+") as file:
        del file["digest"]
        for name, values in statistics.items():
            del file[f"statistics/{name}"]
            file[f"statistics/{name}"] = np.array(values)


@pytest.mark.parametrize("values", [[np.nan], [-1.0], [1.0, 1.0], [np.inf]])
def test_stored_statistics_that_cannot_be_are_refused(ours: Path, values: list[float]) -> None:
    without_digest(ours, state_std=values)
    with pytest.raises(UserError, match="statistics are damaged: state std"):
        open_dataset(ours)


@pytest.mark.parametrize("value", [float("nan"), -1.0, [1.0, 2.0]])
def test_statistics_of_the_well_that_cannot_be_are_refused(tmp_path: Path, value: object) -> None:
    write_well_file(tmp_path / "data" / "train" / "some.hdf5")
    names = ("density", "height", "velocity", "stress")
    sizes = {"density": 1.0, "height": 1.0, "velocity": [1.0, 1.0], "stress": [[1.0, 1.0], [1.0, 1.0]]}
    table = {key: {name: sizes[name] for name in names} for key in ("mean", "std", "mean_delta", "std_delta")}
    (tmp_path / "stats.yaml").write_text(yaml.safe_dump(json.loads(json.dumps(table))))  # copies: no aliases
    assert open_dataset(tmp_path).normalizer().state_std.tolist() == [1.0] * 8
    table["std"] = {**sizes, "density": value}
    (tmp_path / "stats.yaml").write_text(yaml.safe_dump(json.loads(json.dumps(table))))
    with pytest.raises(UserError, match=r"stats\.yaml are damaged: state std"):
        open_dataset(tmp_path).normalizer()


def test_the_fingerprint_of_converted_data_covers_their_values(tmp_path: Path) -> None:
    prints = []
    for index, place in enumerate(((0, 0, 0, 0), (2, 5, 7, 4), (0, 0, 0, 0))):
        values = noise()
        values[place] += 1
        np.save(tmp_path / "run.npy", values)
        prints.append(open_dataset(convert(tmp_path / "run.npy", tmp_path / str(index), FLOW)).fingerprint)
    assert prints[0] == prints[2] != prints[1]


def test_a_validation_split_of_nan_is_named(tmp_path: Path) -> None:
    write_well_file(tmp_path / "valid.hdf5")
    with h5py.File(tmp_path / "valid.hdf5", "r+") as file:
        file["t0_fields/density"][...] = np.nan
    with pytest.raises(UserError, match=r"valid\.hdf5 holds NaN or infinite values in trajectory 0"):
        open_dataset(tmp_path / "valid.hdf5").read([0])


def test_a_file_truncated_while_it_is_streamed_fails(tmp_path: Path) -> None:
    np.save(tmp_path / "run.npy", noise(40, 6, 16, 16))
    path = convert(tmp_path / "run.npy", tmp_path / "train.hdf5", FLOW)
    data = open_dataset(path)
    data.read([0])
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(UserError, match=r"train\.hdf5 was truncated while it was read: \d+ bytes of \d+ are left"):
        data.read([39])


def test_an_array_that_was_never_written_is_not_read_as_zeros(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "run.h5", "w") as file:
        file.create_dataset("density", shape=(3, 6, 8, 5), dtype="f4", chunks=(1, 6, 8, 5))[:2] = 1.0
    with pytest.raises(UserError, match=r"density of shape .* was never written in full"):
        convert(tmp_path / "run.h5", tmp_path / "train.hdf5", FLOW)


# Nothing outside of the file


def secret_file(path: Path) -> Path:
    path.write_bytes(noise().tobytes())
    return path


def external_link(folder: Path) -> None:
    with h5py.File(folder / "other.h5", "w") as file:
        file["density"] = noise()
    with h5py.File(folder / "run.h5", "w") as file:
        file["density"] = h5py.ExternalLink("other.h5", "density")


def external_storage(folder: Path) -> None:
    secret = secret_file(folder / "secret")
    with h5py.File(folder / "run.h5", "w") as file:
        file.create_dataset("density", (3, 6, 8, 5), "f4", external=[(str(secret), 0, h5py.h5f.UNLIMITED)])


def virtual_dataset(folder: Path) -> None:
    with h5py.File(folder / "other.h5", "w") as file:
        file["density"] = noise()
    layout = h5py.VirtualLayout((3, 6, 8, 5), "f4")
    layout[...] = h5py.VirtualSource(str(folder / "other.h5"), "density", (3, 6, 8, 5))
    with h5py.File(folder / "run.h5", "w") as file:
        file.create_virtual_dataset("density", layout)


@pytest.mark.parametrize("make", [external_link, external_storage, virtual_dataset])
def test_hdf5_that_leads_to_other_files_is_refused(make, tmp_path: Path) -> None:
    make(tmp_path)
    with pytest.raises(UserError, match=r"leads to other files: /density .*--allow-external"):
        convert(tmp_path / "run.h5", tmp_path / "train.hdf5", FLOW)
    assert not (tmp_path / "train.hdf5").exists()
    if make is not external_link:  # arrays behind links are not looked for
        convert(tmp_path / "run.h5", tmp_path / "train.hdf5", FLOW, allow_external=True)
        assert np.array_equal(open_dataset(tmp_path).read(slice(None))[..., 0], noise())


@pytest.mark.parametrize("name", ["run.npy", "run.npz", "run.mat", "run.h5", "problem.yaml", "problem.json"])
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no FIFOs here")
def test_a_fifo_is_refused_and_not_waited_for(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    np.save(tmp_path / "frames.npy", noise())
    problem = tmp_path / name if name.startswith("problem") else FLOW
    source = tmp_path / "frames.npy" if name.startswith("problem") else tmp_path / name
    with pytest.raises(UserError, match=f"{name} is not a regular file"):
        convert(source, tmp_path / "train.hdf5", problem)


# Nothing hangs, crashes or explodes


def test_a_matlab_file_that_crashes_its_reader_is_one_line(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    savemat(buffer, {"u": np.arange(24.0).reshape(2, 3, 4)})
    content = bytearray(buffer.getvalue())
    content[184] = 0  # the type of the array's name: scipy 1.17 dies of it
    (tmp_path / "run.mat").write_bytes(content)
    with pytest.raises(UserError, match=r"run\.mat is (damaged: it crashes the library|not a readable MATLAB file)"):
        open_arrays(tmp_path / "run.mat")


@pytest.mark.parametrize(("place", "value"), [(849, 255), (915, 255)])
def test_a_damaged_attribute_neither_hangs_nor_crashes(place: int, value: int, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(opening_module, "SECONDS", 1)
    with h5py.File(tmp_path / "run.h5", "w", libver=("earliest", "v108")) as file:
        file.attrs["names"] = np.array(["a", "b"], dtype=h5py.string_dtype())
        file.attrs["problem"] = "hello world"
        file["x"] = np.arange(4.0)
    content = bytearray((tmp_path / "run.h5").read_bytes())
    content[place] = value  # with HDF5 2.0 the first crashes and the second never ends
    (tmp_path / "run.h5").write_bytes(content)
    with pytest.raises(UserError, match=r"run\.h5 is damaged"):
        open_hdf5(tmp_path / "run.h5")


def test_a_reader_that_never_ends_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "endless.py"
    script.write_text("while True: pass\n")
    monkeypatch.setattr(opening_module._probe, "__file__", str(script))
    monkeypatch.setattr(opening_module, "WALL_SECONDS", 0.5)
    with h5py.File(tmp_path / "run.h5", "w") as file:
        file["density"] = noise()
    with pytest.raises(UserError, match="damaged: reading it does not end"):
        open_hdf5(tmp_path / "run.h5")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("import os; os.abort()", "crashes the library that reads it"),
        ("print('{\"memory\": true}')", "more memory than there is"),
    ],
)
def test_a_reader_that_dies_is_one_line(body: str, message: str, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "dying.py").write_text(body)
    monkeypatch.setattr(opening_module._probe, "__file__", str(tmp_path / "dying.py"))
    with h5py.File(tmp_path / "run.h5", "w") as file:
        file["density"] = noise()
    with pytest.raises(UserError, match=message):
        open_hdf5(tmp_path / "run.h5")


def test_a_file_is_looked_at_once_and_never_if_we_wrote_it(ours: Path, tmp_path: Path, monkeypatch) -> None:
    looks = []
    look = opening_module._look
    monkeypatch.setattr(opening_module, "_look", lambda paths, kind: looks.append(paths) or look(paths, kind))
    open_dataset(ours)
    assert looks == []
    write_well_file(tmp_path / "one.hdf5")
    for _ in range(3):
        open_dataset(tmp_path / "one.hdf5")
    assert looks == [[tmp_path / "one.hdf5"]]
    write_well_file(tmp_path / "one.hdf5", seed=1)
    open_dataset(tmp_path / "one.hdf5")
    assert len(looks) == 2


def test_an_attribute_of_petabytes_is_no_memory_error(tmp_path: Path) -> None:
    write_well_file(tmp_path / "run.hdf5")
    with h5py.File(tmp_path / "run.hdf5", "r+") as file:
        del file["dimensions/time"]
        file["dimensions"].create_dataset("time", shape=(2**50,), dtype="f4", chunks=(1024,))
    with pytest.raises(UserError, match="no axis is that long"):
        open_dataset(tmp_path / "run.hdf5")


def test_an_archive_that_unpacks_to_more_than_the_memory_is_refused(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("factformer._support.limits.available_memory", lambda: 10**6)
    np.savez_compressed(tmp_path / "run.npz", density=np.zeros((3, 6, 200, 200)))
    assert (tmp_path / "run.npz").stat().st_size < 10**5
    with pytest.raises(UserError, match=r"run\.npz unpacked takes about 5\.76 MB of memory"):
        open_arrays(tmp_path / "run.npz")


def write_archive(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def npy(header: str, content: bytes = b"") -> bytes:
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + content


@pytest.mark.parametrize(
    ("member", "content", "message"),
    [
        ("notes.txt", b"hello", "'notes.txt' is no array"),
        ("raw.npy", b"hello", "'raw.npy' is no array"),
        ("a.npy", npy("{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000000,)}"), "less than its shape"),
        ("a.npy", npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", b"x" * 64), "holds objects"),
        ("a.npy", npy("{'descr': ((((", b"x"), "damaged"),
    ],
)
def test_raw_members_of_archives_are_named(member: str, content: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        open_arrays(write_archive(tmp_path / "run.npz", {member: content}))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &x [1]\nb: *x", "anchors and aliases"),
        ("[" * 100 + "]" * 100, "nested more than 32 levels"),
        ("[" * 100_000, "nested more than 32 levels"),
        ("dim: [", "not valid YAML"),
        ("day: 2020-99-99", "cannot be read"),
        ("day: 2020-01-01", "no text, number, list or mapping"),
    ],
)
def test_yaml_that_explodes_is_one_line(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        parse_yaml(text, "config.yaml")
    assert "\n" not in str(error.value) and len(str(error.value)) < 400


def test_deep_json_is_one_line() -> None:
    with pytest.raises(UserError, match="nested too deeply"):
        parse_json("[" * 100_000, "bundle.json")


def test_a_latin_1_problem_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "problem.yaml").write_bytes("name: Strömung".encode("latin-1"))
    np.save(tmp_path / "run.npy", noise())
    with pytest.raises(UserError, match=r"problem\.yaml is not UTF-8 text"):
        convert(tmp_path / "run.npy", tmp_path / "train.hdf5", tmp_path / "problem.yaml")


@pytest.mark.parametrize("provenance", ["[1]", '"text"', '{"parameters": 3}', "[" * 100_000])
def test_provenance_that_is_no_mapping_is_one_line(ours: Path, provenance: str) -> None:
    without_digest(ours)
    with h5py.File(ours, "r+") as file:
        del file.attrs["provenance"]
        if len(provenance) > 60_000:
            provenance = provenance[:60_000]
        file.attrs["provenance"] = provenance
    with pytest.raises(UserError, match=r"provenance is (not a mapping|nested too deeply)"):
        open_dataset(ours)


def test_an_empty_array_of_times_is_one_line(tmp_path: Path) -> None:
    write_well_file(tmp_path / "run.hdf5")
    with h5py.File(tmp_path / "run.hdf5", "r+") as file:
        del file["dimensions/time"]
        file["dimensions/time"] = np.zeros(0)
    with pytest.raises(UserError, match=r"dimensions/time of shape .* not an empty one"):
        open_dataset(tmp_path / "run.hdf5")


# Silent misreadings


def write_arrays(path: Path, arrays: dict[str, np.ndarray]) -> Path:
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    elif path.suffix == ".mat":
        savemat(path, arrays)
    else:
        with h5py.File(path, "w") as file:
            for name, values in arrays.items():
                file[name] = values
    return path


@pytest.mark.parametrize("suffix", [".npz", ".mat", ".h5"])
@pytest.mark.parametrize("name", ["t", "time"])
def test_times_beside_the_frames_set_the_interval(name: str, suffix: str, tmp_path: Path) -> None:
    arrays = {"density": noise(), name: 3 + 0.25 * np.arange(6)}
    data = import_dataset(write_arrays(tmp_path / f"run{suffix}", arrays), FLOW)
    assert data.problem.frame_dt == pytest.approx(0.25)
    said = import_dataset(tmp_path / f"run{suffix}", FLOW, settings=["frame_dt=2"])
    assert said.problem.frame_dt == 2
    for bad, message in ((np.arange(6.0) ** 2, "not evenly spaced"), (np.arange(5.0), "for 6 frames: correct them")):
        with pytest.raises(UserError, match=message):
            import_dataset(write_arrays(tmp_path / f"bad{suffix}", {**arrays, name: bad}), FLOW)


@pytest.mark.parametrize("suffix", [".npz", ".mat", ".h5"])
@pytest.mark.parametrize(
    ("times", "message"),
    [
        (np.array(list("abcdef")), "t holds text where times should be"),
        (np.arange(6) * 1j, "t holds complex numbers"),
        (np.arange(18.0).reshape(3, 6), r"t has shape \(3, 6\) and differs by trajectory"),
        (np.array(0.5), r"its times have shape \(1,\), for 6 frames"),
    ],
    ids=["text", "complex", "table", "scalar"],
)
def test_times_that_are_no_list_of_numbers_are_refused(
    times: np.ndarray, message: str, suffix: str, tmp_path: Path
) -> None:
    values = times.astype("S1") if times.dtype.kind == "U" and suffix == ".h5" else times
    path = write_arrays(tmp_path / f"run{suffix}", {"density": noise(), "t": values})
    for settings in ([], ["frame_dt=2"]):
        with pytest.raises(UserError, match=message):
            import_dataset(path, FLOW, settings=settings)
    write_arrays(path, {"density": noise(), "t0": np.zeros(3)})
    assert import_dataset(path, FLOW, settings=["frame_dt=2"]).problem.frame_dt == 2


def test_dates_and_times_of_every_trajectory_set_the_interval(tmp_path: Path) -> None:
    days = np.datetime64("2026-01-31") + np.arange(6).astype("timedelta64[D]")
    for times, interval in (
        (days, 86400),
        (days - days[0], 86400),
        (np.tile(0.5 * np.arange(6), (3, 1)), 0.5),
    ):
        write_arrays(tmp_path / "run.npz", {"density": noise(), "t": times})
        assert import_dataset(tmp_path / "run.npz", FLOW).problem.frame_dt == interval
    days[3] = days[4]
    with pytest.raises(UserError, match="do not increase"):
        import_dataset(write_arrays(tmp_path / "run.npz", {"density": noise(), "t": days}), FLOW)


def test_times_and_an_interval_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    arrays = {"density": noise(), "t": 0.5 * np.arange(6), "frame_dt": np.array(0.5)}
    assert import_dataset(write_arrays(tmp_path / "run.npz", arrays), FLOW).problem.frame_dt == 0.5
    with pytest.raises(UserError, match=r"run\.npz: its times are 0\.5 apart, its frame_dt is 0\.1"):
        import_dataset(write_arrays(tmp_path / "run.npz", {**arrays, "frame_dt": np.array(0.1)}), FLOW)
    for bad in (0.0, -1.0, np.nan):
        with pytest.raises(UserError, match=r"run\.npz: its frame_dt is .* more than 0"):
            import_dataset(write_arrays(tmp_path / "run.npz", {"density": noise(), "frame_dt": np.array(bad)}), FLOW)


def test_times_beside_the_frames_of_a_roll_out_must_fit(tmp_path: Path) -> None:
    problem = Problem("flow", Grid((8, 5), 1.0, False), (Field("density"),), frame_dt=0.5, boundary="reflect")
    frames = {"density": noise()}
    read_context(write_arrays(tmp_path / "run.npz", {**frames, "t": 0.5 * np.arange(6)}), problem, num_frames=1)
    for times, message in (
        (0.3 * np.arange(6), "0.3 apart in time and 0.5 is needed"),
        (np.arange(3.0), "say frame_dt"),
    ):
        with pytest.raises(UserError, match=message):
            read_context(write_arrays(tmp_path / "bad.npz", {**frames, "t": times}), problem, num_frames=1)


def test_an_order_of_axes_that_their_lengths_contradict_is_not_guessed(tmp_path: Path) -> None:
    problem = {**FLOW, "state": {"u": 1}}
    lines = {"x": np.arange(8.0), "y": np.arange(5.0)}
    turned = write_arrays(tmp_path / "turned.npz", {"u": noise(8, 5, 6, 3), "t": np.arange(6.0), **lines})
    with pytest.raises(UserError, match=r"is no ntxy, .* lengths x 8, y 5, t 6: .*\(--layout\), such as xytn$"):
        import_dataset(turned, problem)
    assert import_dataset(turned, problem, layout="xytn").num_frames == 6
    assert import_dataset(write_arrays(tmp_path / "usual.npz", {"u": noise(), **lines}), problem).num_trajectories == 3
    write_arrays(tmp_path / "other.npz", {"u": noise(), "x": np.arange(7.0)})  # what fits no order tells none
    assert import_dataset(tmp_path / "other.npz", problem).num_frames == 6
    seen = Problem("flow", Grid((8, 5), 1.0, False), (Field("u"),), boundary="reflect")
    with pytest.raises(UserError, match=r"such as xytn"):
        read_context(turned, seen)


def test_a_file_of_another_box_starts_no_roll_out(tmp_path: Path) -> None:
    problem = Problem("flow", Grid((8, 5), (2.0, 1.0), (True, False)), (Field("u"),), boundary="reflect")
    u = noise(3, 6, 16, 9)
    for scale, points in ((1, np.linspace(0, 1, 9)), (10, np.linspace(0, 1, 9)), (1, np.arange(9) / 9 + 1 / 18)):
        coords = {"x": scale * np.arange(16) / 8, "y": scale * points}
        given = xarray.Dataset({"u": (("sample", "time", "x", "y"), u)}, coords=coords)
        given.to_netcdf(tmp_path / "run.nc", engine="h5netcdf")
        if scale == 1 and points[0] == 0:
            assert read_context(tmp_path / "run.nc", problem).batch.context.shape[2:4] == (16, 9)
            continue
        with pytest.raises(UserError, match=r"grid extent \(2.0, 1.0\) expected, \(.*\) found; only the resolution"):
            read_context(tmp_path / "run.nc", problem)
    given.drop_vars(["x", "y"]).to_netcdf(tmp_path / "bare.nc", engine="h5netcdf")
    assert read_context(tmp_path / "bare.nc", problem).num_available == 6


def test_a_field_may_be_called_t(tmp_path: Path) -> None:
    problem = {**FLOW, "num_axes": 1, "state": {"t": 1}}
    write_arrays(tmp_path / "run.npz", {"t": noise(3, 6, 8), "time": 0.5 * np.arange(6)})
    data = import_dataset(tmp_path / "run.npz", problem)
    assert np.array_equal(data.read([1])[0, ..., 0], noise(3, 6, 8)[1])
    assert data.problem.frame_dt == 0.5


def write_matlab_73(path: Path, values: np.ndarray) -> Path:
    with h5py.File(path, "w", userblock_size=512) as file:
        file.create_dataset("u", data=values.T)
        file["u"].attrs["MATLAB_class"] = np.bytes_("single")
    return path


def test_ambiguous_axes_of_matlab_73_are_asked_for(tmp_path: Path) -> None:
    path = write_matlab_73(tmp_path / "run.mat", noise())
    with pytest.raises(UserError, match=r"axes of array u of shape \(3, 6, 8, 5\) are not clear.*--layout"):
        import_dataset(path, FLOW)
    assert np.array_equal(import_dataset(path, FLOW, layout="ntxy").read([0])[0, ..., 0], noise()[0])
    square = write_matlab_73(tmp_path / "square.mat", noise(3, 6, 8, 8))
    assert np.array_equal(import_dataset(square, FLOW).read([0])[0, ..., 0], noise(3, 6, 8, 8)[0])


def test_messages_are_cut_at_a_line(tmp_path: Path) -> None:
    np.save(tmp_path / "run.npy", noise())
    problem = {**FLOW, "horizon": [1] * 100_000, "x" * 100_000: 1}
    (tmp_path / "problem.json").write_text(json.dumps(problem))
    with pytest.raises(UserError) as error:
        convert(tmp_path / "run.npy", tmp_path / "train.hdf5", tmp_path / "problem.json")
    assert len(str(error.value)) < 2000
