"""Bundles: exact round trip, no pickle, and one clear line for every kind of damage."""

import contextlib
import copy
import hashlib
import json
import os
import pickle
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import factformer
from factformer import Field, Grid, Problem, build_surrogate
from factformer.bundle import load, save_bundle
from factformer.data.normalization import Normalizer
from factformer.errors import UserError
from factformer.zoo.description import description_checksum
from factformer.zoo.lookup import installed

SMALL = {"dim": 16, "depth": 1, "heads": 2, "head_dim": 8, "kernel_dim": 8}


@pytest.fixture
def surrogate():
    grid = Grid.from_axes([[0.0, 0.2, 0.5, 1.0], [0.0, 0.4, 1.0]])
    problem = Problem("box", grid, (Field("p"), Field("u", 2)), num_context_frames=2, horizon=4, boundary="zero")
    normalizer = Normalizer(
        context_mean=[0.1, 0.2, 0.3],
        context_std=[1.0, 1 / 3, 2.0],
        state_mean=[0.1, 0.2, 0.3],
        state_std=[1.0, 1 / 3, 2.0],
        increment_std=[0.1, 0.1, 0.7],
    )
    return build_surrogate(problem, marching_steps=3, normalizer=normalizer, residual=True, **SMALL)


def context():
    return torch.randn(1, 2, 4, 3, 3, generator=torch.Generator().manual_seed(1))


def test_round_trip_is_bit_exact(surrogate, tmp_path, monkeypatch):
    path = save_bundle(surrogate, tmp_path / "b", {"seed": 7, "metrics": {"relative_l2": 0.1}})
    monkeypatch.setattr(pickle, "load", None)
    monkeypatch.setattr(pickle, "loads", None)
    loaded = factformer.load(path)
    assert torch.equal(loaded(context(), 3), surrogate(context(), 3))
    assert (loaded.problem, loaded.config, loaded.marching_steps) == (surrogate.problem, surrogate.config, 3)
    assert loaded.provenance["seed"] == 7
    assert loaded.provenance["factformer"] == factformer.__version__
    assert not loaded.training
    assert sorted(p.name for p in path.iterdir()) == ["bundle.json", "model.safetensors"]


def test_half_storage_keeps_statistics_exact(surrogate, tmp_path):
    small = load(save_bundle(surrogate, tmp_path / "small", storage=torch.float16))
    full = save_bundle(surrogate, tmp_path / "full")
    size = (tmp_path / "small" / "model.safetensors").stat().st_size
    assert size < 0.75 * (full / "model.safetensors").stat().st_size
    assert torch.equal(small.normalizer.context_std, surrogate.normalizer.context_std)
    assert torch.allclose(small(context(), 3), surrogate(context(), 3), atol=2e-2)


def test_others_may_read_what_they_are_given(surrogate, tmp_path):
    path = save_bundle(surrogate, tmp_path / "b")
    modes = {file.stat().st_mode & 0o777 for file in path.iterdir()}
    (tmp_path / "plain.txt").write_text("as any other file")
    assert modes == {(tmp_path / "plain.txt").stat().st_mode & 0o777}


def test_weights_too_large_for_16_bits_are_kept_whole(surrogate, tmp_path):
    with torch.no_grad():
        surrogate.decoder.project.bias.fill_(1e5)
    small = load(save_bundle(surrogate, tmp_path / "small", storage=torch.float16))
    assert torch.equal(small.decoder.project.bias, surrogate.decoder.project.bias)


def test_nothing_is_overwritten_unasked(surrogate, tmp_path):
    path = save_bundle(surrogate, tmp_path / "b")
    before = (path / "bundle.json").read_bytes()
    with pytest.raises(ValueError, match="exists already"):
        save_bundle(surrogate, path, {"seed": 1})
    assert (path / "bundle.json").read_bytes() == before
    save_bundle(surrogate, path, {"seed": 1}, overwrite=True)
    assert load(path).provenance["seed"] == 1
    assert [p.name for p in tmp_path.iterdir()] == ["b"]


def rewrite(path, change, *, signed=True):
    """Change the values of `bundle.json`, by default with a checksum that fits."""
    values = json.loads((path / "bundle.json").read_text())
    change(values)
    if signed:
        values["description_sha256"] = description_checksum(values)
    (path / "bundle.json").write_text(json.dumps(values))


def damage(path, kind):
    weights, description = path / "model.safetensors", path / "bundle.json"
    if kind == "truncated":
        weights.write_bytes(weights.read_bytes()[:-10])
    elif kind == "missing":
        weights.unlink()
    elif kind == "half a description":
        description.write_text(description.read_text()[:50])
    elif kind == "foreign":
        description.write_text('{"weights": "pickle"}')
    elif kind == "future":
        rewrite(path, lambda values: values.update(version=99))
    elif kind == "unknown key":
        rewrite(path, lambda values: values["config"].update(colour="red"))
    elif kind == "text for numbers":
        rewrite(path, lambda values: values["normalization"].update(context_mean="zero"))
    elif kind == "too many deviations":
        rewrite(path, lambda values: values["normalization"]["state_std"].append(1.0))
    elif kind == "no description":
        description.unlink()


def assert_refused(path, words):
    """The bundle is not loaded, and one line says why."""
    with pytest.raises(UserError, match=words) as error:
        load(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("truncated", "does not match its checksum"),
        ("missing", "has no model.safetensors"),
        ("half a description", "not valid JSON"),
        ("foreign", "not written by factformer"),
        ("future", "version 99"),
        ("unknown key", "unknown key 'model.colour'"),
        ("text for numbers", "normalization.context_mean must be a list of numbers"),
        ("too many deviations", "the normaliser's state_std has"),
        ("no description", "is not a bundle"),
    ],
)
def test_damage_is_one_clear_line(surrogate, tmp_path, kind, words):
    path = save_bundle(surrogate, tmp_path / "b")
    damage(path, kind)
    assert_refused(path, words)


def test_names_and_missing_paths(surrogate, tmp_path, monkeypatch):
    save_bundle(surrogate, tmp_path / "box-4")
    monkeypatch.setenv("FACTFORMER_ZOO", str(tmp_path))
    assert "box-4" in installed()
    assert load("box-4").problem.name == "box"
    with pytest.raises(ValueError, match=r"no bundle at .*box-5"):
        load("box-5")
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match="is a file"):
        load(tmp_path / "file")


def test_only_a_bundle_is_replaced(surrogate, tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match="holds other things than a bundle"):
        save_bundle(surrogate, tmp_path / "precious", overwrite=True)
    assert (tmp_path / "precious" / "thesis.txt").read_text() == "mine"
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match="cannot write the bundle"):
        save_bundle(surrogate, tmp_path / "file" / "bundle")


def test_double_precision_comes_back(surrogate, tmp_path):
    twice = load(save_bundle(copy.deepcopy(surrogate).double(), tmp_path / "b"))
    assert {p.dtype for p in twice.parameters()} == {torch.float64}
    for ours, theirs in zip(twice.parameters(), surrogate.parameters(), strict=True):
        assert torch.equal(ours, theirs.double())


def test_a_dataset_in_place_of_a_bundle_is_named(tmp_path):
    (tmp_path / "train.hdf5").touch()
    with pytest.raises(UserError, match="holds a dataset, and this takes a run or a bundle"):
        load(tmp_path)


def test_a_run_that_was_stopped_says_how_to_go_on(tmp_path):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    with pytest.raises(UserError, match="train --resume --out"):
        load(tmp_path / "run")


def test_a_flipped_bit_in_the_description_is_found(surrogate, tmp_path):
    path = save_bundle(surrogate, tmp_path / "b")

    def change(values):
        values["normalization"]["state_std"][0] = 1.35

    rewrite(path, change, signed=False)
    with pytest.raises(UserError, match="does not match its checksum"):
        load(path)
    rewrite(path, change)  # signed by whoever changed it: the weights hold the statistics too
    with pytest.raises(UserError, match="hold different statistics"):
        load(path)


def test_bundles_of_version_1_still_load(surrogate, tmp_path):
    path = save_bundle(surrogate, tmp_path / "b")

    def to_version_1(values):
        values.pop("description_sha256")
        values["version"] = 1

    rewrite(path, to_version_1, signed=False)
    assert torch.equal(load(path)(context(), 3), surrogate(context(), 3))
    rewrite(path, lambda values: values["normalization"]["state_std"].__setitem__(0, 1.35), signed=False)
    with pytest.raises(UserError, match="hold different statistics"):
        load(path)


def test_a_new_bundle_does_not_pass_for_an_old_one(surrogate, tmp_path):
    path = save_bundle(surrogate, tmp_path / "b")
    rewrite(path, lambda values: values.update(version=1), signed=False)
    with pytest.raises(UserError, match="does not match its checksum"):
        load(path)


@pytest.mark.parametrize(
    ("statistics", "words"),
    [
        ({"context_std": [1.0, 0.0, 2.0]}, "context_std is zero"),
        ({"state_std": [1.0, -1.0, 2.0]}, "state_std is negative"),
        ({"state_mean": [0.1, 1e300, 0.3]}, "state_mean is not finite"),
        ({"state_std": [1.0, 0.0, 0.0]}, "its context_std says that it varies"),
        ({"state_std": [1.0, 0.0, 2.0]}, "zero for some components of 'u'"),
        ({"increment_std": [0.0, 0.1, 0.7]}, "increment_std is zero"),
        ({"state_std": [1.0, 2.0]}, "state_std has 2 channels"),
        ({"state_std": [1.0, None, 2.0]}, "must be a list of numbers"),
        ({"state_std": [1.0, True, 2.0]}, "must be a list of numbers"),
    ],
)
def test_stored_statistics_are_checked(surrogate, tmp_path, statistics, words):
    path = save_bundle(surrogate, tmp_path / "b")
    rewrite(path, lambda values: values["normalization"].update(statistics))
    assert_refused(path, words)


def test_a_constant_field_has_no_deviation_and_is_a_good_bundle(tmp_path):
    problem = Problem("box", Grid((4, 4), 1.0, True), (Field("p"), Field("t")), num_context_frames=2, horizon=4)
    seen = {"context_mean": [0.1, 300.0], "context_std": [2.0, 1.0]}
    normalizer = Normalizer(**seen, state_mean=[0.1, 300.0], state_std=[2.0, 0.0], increment_std=[0.5, 0.0])
    surrogate = build_surrogate(problem, normalizer=normalizer, **SMALL)
    assert load(save_bundle(surrogate, tmp_path / "b")).normalizer.state_std.tolist() == [2.0, 0.0]


def rewrite_weights(path, change):
    """Change the tensors, with the checksums of both files."""
    state = load_file(path / "model.safetensors")
    change(state)
    save_file(state, path / "model.safetensors")
    digest = hashlib.sha256((path / "model.safetensors").read_bytes()).hexdigest()
    rewrite(path, lambda values: values.update(sha256=digest))


WEIGHT = "decoder.project.weight"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda state: state.update({WEIGHT: state[WEIGHT].to(torch.int32)}), "is stored as I32"),
        (lambda state: state.update({WEIGHT: state[WEIGHT].to(torch.complex64)}), "is stored as C64"),
        (lambda state: state[WEIGHT].fill_(float("nan")), "NaN or infinite weights in 'decoder.project.weight'"),
        (lambda state: state[WEIGHT].fill_(float("inf")), "NaN or infinite"),
        (lambda state: state.pop(WEIGHT), "lacks the tensor 'decoder.project.weight'"),
        (lambda state: state.update(other=torch.zeros(2)), "does not have: 'other'"),
        (lambda state: state.update({WEIGHT: torch.zeros(2, 2)}), r"has shape \(2, 2\), the model has"),
    ],
)
def test_tensors_are_checked_on_arrival(surrogate, tmp_path, change, words):
    path = save_bundle(surrogate, tmp_path / "b")
    rewrite_weights(path, change)
    assert_refused(path, words)


def test_a_header_or_config_that_claims_huge_sizes_allocates_nothing(surrogate, tmp_path):
    path = save_bundle(surrogate, tmp_path / "b")
    header = json.dumps({"x": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}).encode()
    (path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"0000")
    digest = hashlib.sha256((path / "model.safetensors").read_bytes()).hexdigest()
    rewrite(path, lambda values: values.update(sha256=digest))
    with pytest.raises(UserError, match="not a safetensors file"):
        load(path)
    (path / "model.safetensors").write_bytes(struct.pack("<Q", 2**60) + b"{}")
    digest = hashlib.sha256((path / "model.safetensors").read_bytes()).hexdigest()
    rewrite(path, lambda values: values.update(sha256=digest))
    with pytest.raises(UserError, match="not a safetensors file"):
        load(path)
    other = save_bundle(surrogate, tmp_path / "wide")
    for change, words in (
        ({"head_dim": 4096}, "the model has"),
        ({"depth": 1024}, "too few for"),
        ({"head_dim": 1_000_000}, "less than or equal to 4096"),
        ({"depth": 10**12}, "less than or equal to 1024"),
    ):
        rewrite(
            other,
            lambda values, change=change: (
                values["config"].update(depth=1, head_dim=8) or values["config"].update(change)
            ),
        )
        with pytest.raises(UserError, match=words):
            load(other)


def replace_values(values, path=()):
    """The places of a JSON value, each with a function that puts another value there."""
    items = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    for key, value in list(items):
        yield (*path, key)
        yield from replace_values(value, (*path, key))


@pytest.mark.parametrize("wrong", [None, True, "x", -1, 1e308, [], {}, [[1]]], ids=repr)
def test_wrong_types_anywhere_in_the_description_are_one_line(surrogate, tmp_path, wrong):
    path = save_bundle(surrogate, tmp_path / "b", {"seed": 1})
    whole = json.loads((path / "bundle.json").read_text())
    for place in list(replace_values(whole)):
        if place[0] == "provenance" and len(place) > 1:
            continue  # free text
        values = copy.deepcopy(whole)
        inner = values
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = wrong
        values["description_sha256"] = description_checksum(values)
        (path / "bundle.json").write_text(json.dumps(values))
        with contextlib.suppress(UserError):  # any other exception fails this test
            load(path)


def test_deep_json_and_a_latin_1_description_are_one_line(surrogate, tmp_path):
    path = save_bundle(surrogate, tmp_path / "b")
    text = (path / "bundle.json").read_text()
    for deep in ("[" * 100_000, "[" * 300 + "]" * 300, '{"a":' * 200 + "1" + "}" * 200):
        (path / "bundle.json").write_text(
            text.replace('"seed"', '"x"').replace('"provenance": {', f'"z": {deep}, "provenance": {{')
        )
        with pytest.raises(UserError, match=r"JSON|nested"):
            load(path)
    (path / "bundle.json").write_bytes('{"format": "café"}'.encode("latin-1"))
    with pytest.raises(UserError, match="not UTF-8"):
        load(path)


def test_a_fifo_is_not_read(surrogate, tmp_path):
    path = save_bundle(surrogate, tmp_path / "b")
    for name, words in (("model.safetensors", "has no model.safetensors"), ("bundle.json", "has no bundle.json")):
        (path / name).unlink()
        os.mkfifo(path / name)
        with pytest.raises(UserError, match=words):
            load(path)


def test_weights_that_are_not_finite_are_not_saved(surrogate, tmp_path):
    with torch.no_grad():
        surrogate.decoder.project.bias.fill_(float("nan"))
    with pytest.raises(UserError, match="NaN or infinite weights"):
        save_bundle(surrogate, tmp_path / "b")
    assert list(tmp_path.iterdir()) == []


def test_the_old_bundle_comes_back_when_the_new_one_cannot_come_in(surrogate, tmp_path, monkeypatch):
    path = save_bundle(surrogate, tmp_path / "b", {"seed": 1})
    replace, calls = os.replace, []

    def fail_second(source, target):
        calls.append(target)
        if len(calls) == 2:
            raise OSError(5, "Input/output error")
        replace(source, target)

    monkeypatch.setattr(os, "replace", fail_second)
    with pytest.raises(UserError, match="cannot write the bundle"):
        save_bundle(surrogate, path, {"seed": 2}, overwrite=True)
    assert load(path).provenance["seed"] == 1
    assert [item.name for item in tmp_path.iterdir()] == ["b"]


def test_a_save_killed_at_any_rename_leaves_a_bundle_and_the_next_cleans_up(surrogate, tmp_path, monkeypatch):
    replace = os.replace
    for killed_at in (1, 2):
        path = save_bundle(surrogate, tmp_path / f"run{killed_at}" / "bundle", {"seed": 1})
        calls = []

        def kill(source, target, calls=calls, killed_at=killed_at):
            calls.append(target)
            if len(calls) > killed_at:
                os._exit(9)
            replace(source, target)
            if len(calls) == killed_at:
                os._exit(9)

        child = os.fork()
        if child == 0:
            monkeypatch.setattr(os, "replace", kill)
            save_bundle(surrogate, path, {"seed": 2}, overwrite=True)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
        for name in (path, path.parent):
            assert load(name).provenance["seed"] == killed_at
        save_bundle(surrogate, path, {"seed": 3}, overwrite=True)
        assert load(path).provenance["seed"] == 3
        assert [item.name for item in path.parent.iterdir()] == ["bundle"]


def test_a_folder_that_cannot_be_written_is_one_line(surrogate, tmp_path, monkeypatch):
    def forbidden(*_, **__):
        raise PermissionError(13, "Permission denied", "there")

    monkeypatch.setattr(Path, "mkdir", forbidden)
    with pytest.raises(UserError, match=r"cannot write the bundle .*Permission denied"):
        save_bundle(surrogate, tmp_path / "none" / "b")


def test_flipped_bytes_are_refused_or_change_nothing(surrogate, tmp_path):
    path = save_bundle(surrogate, tmp_path / "b", {"seed": 1})
    expected, generator = surrogate(context(), 3), torch.Generator().manual_seed(0)
    for name in ("bundle.json", "model.safetensors"):
        whole = (path / name).read_bytes()
        for position in torch.randint(len(whole), (60,), generator=generator).tolist():
            damaged = bytearray(whole)
            damaged[position] ^= 1 << int(torch.randint(8, (1,), generator=generator))
            (path / name).write_bytes(bytes(damaged))
            with contextlib.suppress(UserError):
                assert torch.equal(load(path)(context(), 3), expected), (name, position)
        (path / name).write_bytes(whole)
