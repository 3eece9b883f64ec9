"""Every value of the files that `report` reads, changed in turn: a page or one clear line, never a raw exception."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
import yaml
from report_samples import make_run, save_run

from factformer.errors import UserError
from factformer.report.analysis import write_evaluation_figures
from factformer.report.html import report_runs

DEEP = json.loads("[" * 200 + "]" * 200)
WRONG = {
    "nothing": None,
    "truth value": True,
    "text": "x",
    "negative": -1,
    "huge": 1e308,
    "huge integer": 10**400,
    "list": [],
    "mapping": {},
    "deep": DEEP,
    "long text": "y" * 20_000,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    run = make_run(shape=(8, 8), num_frames=2, num_samples=1)
    grid = np.array(json.dumps(run.problem.grid.to_dict()))
    return save_run(tmp_path_factory.mktemp("damaged") / "run", run, grid=grid)


@pytest.fixture
def restored(folder):
    """The run folder, whose files are as they were after each test."""
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    yield folder
    for path, content in before.items():
        path.write_bytes(content)


def places(values, path=()):
    items = values.items() if isinstance(values, dict) else enumerate(values[:2]) if isinstance(values, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from places(value, (*path, key))


def changed(values, place, wrong):
    result = copy.deepcopy(values)
    inner = result
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = wrong
    return result


def refused(folder, out):
    """Whether a report is refused; with one line that is not long."""
    try:
        report_runs([folder], out, overwrite=True)
    except UserError as error:
        return "\n" not in str(error) and len(str(error)) < 2_000
    return False


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_an_evaluation_with_a_wrong_value_anywhere(restored, tmp_path, wrong):
    file = restored / "evaluation.json"
    whole = json.loads(file.read_text())
    accepted = []
    for place in places(whole):
        file.write_text(json.dumps(changed(whole, place, wrong)))
        if not refused(restored, tmp_path):
            accepted.append(place)
    if wrong is None:  # a number that is not finite or was not measured
        assert not {place[-1] for place in accepted} & {"fields", "num_frames", "split", "relative_l2_per_frame"}
    elif wrong == "x":
        texts = {"floor", "problem", "model", "split", "other_parameters", "dataset_fingerprint", "precision"}
        assert {place[-1] for place in accepted} <= texts | {"hardware", "command", "commit", "created"}
    elif wrong == {}:
        assert {place[-1] for place in accepted} <= {"versions"}
    elif wrong == 1e308:
        assert not {place[-1] for place in accepted} & {"num_frames", "parameters", "num_windows", "grid"}
    else:
        assert accepted == []


def test_an_evaluation_that_lacks_a_value(restored, tmp_path):
    file = restored / "evaluation.json"
    whole = json.loads(file.read_text())
    later = {"command", "commit", "seed", "wall_seconds", "created", "versions", "stride"}
    for place in places(whole):
        if isinstance(place[-1], int) or place[0] in later:
            continue
        values = copy.deepcopy(whole)
        inner = values
        for key in place[:-1]:
            inner = inner[key]
        del inner[place[-1]]
        file.write_text(json.dumps(values))
        assert refused(restored, tmp_path), place


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "NaN", '{"fields": NaN}', "[" * 100_000, "\x00", '"x"'])
@pytest.mark.parametrize("name", ["evaluation.json", "environment.json"])
def test_broken_json_is_one_line(restored, tmp_path, name, text):
    (restored / name).write_text(text)
    assert refused(restored, tmp_path)


@pytest.mark.parametrize("name", ["evaluation.json", "environment.json", "config.yaml"])
def test_text_that_is_not_utf_8_is_one_line(restored, tmp_path, name):
    (restored / name).write_bytes('{"command": "café"}'.encode("latin-1"))
    assert refused(restored, tmp_path)


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_configuration_and_an_environment_with_a_wrong_value_anywhere(restored, tmp_path, wrong):
    config = yaml.safe_load((restored / "config.yaml").read_text())
    before = (restored / "config.yaml").read_text()
    for place in places(config):
        (restored / "config.yaml").write_text(json.dumps(changed(config, place, wrong)))
        refused(restored, tmp_path)
    (restored / "config.yaml").write_text(before)
    (restored / "environment.json").write_text(json.dumps({"command": wrong}))
    assert refused(restored, tmp_path) == (wrong is not None and not isinstance(wrong, str) and bool(wrong))


@pytest.mark.parametrize(
    "text",
    ["a: &x [1]\nb: *x", "[" * 5_000, "- 1", "a: [", "a: 2020-99-99", "? [1]\n: 2", "model: 3", "model: {name: [1]}"],
)
def test_a_configuration_that_is_not_one_is_one_line(restored, tmp_path, text):
    (restored / "config.yaml").write_text(text)
    assert refused(restored, tmp_path)


def stored(folder):
    with np.load(folder / "rollouts.npz") as file:
        return {name: file[name] for name in file.files}


ROLLOUTS = {
    "no truth": lambda a: a.pop("truth"),
    "no prediction": lambda a: a.pop("prediction"),
    "integers": lambda a: a.update(truth=a["truth"].astype(int)),
    "complex": lambda a: a.update(truth=a["truth"].astype(complex)),
    "text": lambda a: a.update(truth=np.array("x")),
    "other shape": lambda a: a.update(truth=a["truth"][:, :1]),
    "no samples": lambda a: a.update(truth=a["truth"][:0], prediction=a["prediction"][:0]),
    "no frames": lambda a: a.update(truth=a["truth"][:, :0], prediction=a["prediction"][:, :0]),
    "fewer frames": lambda a: a.update(truth=a["truth"][:, :1], prediction=a["prediction"][:, :1]),
    "one axis too few": lambda a: a.update(truth=a["truth"][..., 0], prediction=a["prediction"][..., 0]),
    "many axes": lambda a: a.update({k: a[k].reshape(1, 2, *[1] * 10, -1) for k in ("truth", "prediction")}),
    "NaN truth": lambda a: a["truth"].fill(np.nan),
    "infinite truth": lambda a: a.update(truth=np.full_like(a["truth"], 1e300, dtype=float)),
    "no text for fields": lambda a: a.update(fields=np.array(3)),
    "half a text": lambda a: a.update(fields=np.array("[[")),
    "deep fields": lambda a: a.update(fields=np.array("[" * 5_000)),
    "fields of numbers": lambda a: a.update(fields=np.array("[1, 2]")),
    "fields with words": lambda a: a.update(fields=np.array('[["u", "many"]]')),
    "other fields": lambda a: a.update(fields=np.array('[["u", 1]]')),
    "other channels": lambda a: a.update(fields=np.array('[["vorticity", 3]]')),
    "a grid of words": lambda a: a.update(grid=np.array('{"shape": "x"}')),
    "no grid": lambda a: a.update(grid=np.array("null")),
    "another grid": lambda a: a.update(grid=np.array(a["grid"].item().replace("8", "9"))),
    "context of another grid": lambda a: a.update(context=a["truth"][:, :, :4]),
}


@pytest.mark.parametrize("change", ROLLOUTS.values(), ids=ROLLOUTS)
def test_damaged_roll_outs_are_one_line(restored, tmp_path, change):
    arrays = stored(restored)
    change(arrays)
    np.savez(restored / "rollouts.npz", **arrays)
    assert refused(restored, tmp_path)


def test_pickled_and_bloated_roll_outs_are_not_unpacked(restored, tmp_path):
    arrays = stored(restored)
    np.savez(restored / "rollouts.npz", **(arrays | {"truth": np.array([{}, []], dtype=object)}))
    assert refused(restored, tmp_path)
    np.savez_compressed(restored / "rollouts.npz", **(arrays | {"fields": np.array("x" * 2**20)}))
    assert refused(restored, tmp_path)
    whole = (restored / "rollouts.npz").read_bytes()
    header = b"'shape': (1, 2, 8, 8, 1)"
    np.savez(restored / "rollouts.npz", **arrays)
    plain = (restored / "rollouts.npz").read_bytes()
    assert header in plain
    (restored / "rollouts.npz").write_bytes(plain.replace(header, b"'shape': (9**20, 8, 8,1)"))
    assert refused(restored, tmp_path)
    for content in (whole[: len(whole) // 2], plain[:-30], b"", b"PK\x03\x04" + b"\x00" * 100):
        (restored / "rollouts.npz").write_bytes(content)
        assert refused(restored, tmp_path)


def test_flipped_bytes_in_roll_outs_never_raise_anything_else(restored, tmp_path):
    whole = (restored / "rollouts.npz").read_bytes()
    rng = np.random.default_rng(0)
    for position in rng.integers(0, len(whole), 60):
        damaged = bytearray(whole)
        damaged[position] ^= int(rng.integers(1, 256))
        (restored / "rollouts.npz").write_bytes(bytes(damaged))
        refused(restored, tmp_path)


def test_a_diverged_evaluation_can_be_drawn_and_reported(restored, tmp_path):
    file = restored / "evaluation.json"
    values = json.loads(file.read_text())
    errors = values["fields"]["vorticity"]
    errors |= {"relative_l2": None, "relative_l2_final": None, "relative_l2_per_frame": [0.1, None]}
    errors["spectrum"]["prediction"][0] = None
    errors["persistence"] = {"relative_l2": None, "relative_l2_final": None, "relative_l2_per_frame": [None, None]}
    values["persistence"]["vorticity"] = None
    file.write_text(json.dumps(values))
    assert report_runs([restored], tmp_path).exists()
    assert [path.name for path in write_evaluation_figures(restored)] == ["rollout-vorticity-0.png"]
