"""Bundles: exact round trip, no pickle, and one clear line for every kind of damage."""

import copy
import json
import pickle

import pytest
import torch

import factformer
from factformer import Field, Grid, Problem, build_surrogate
from factformer.bundle import load, save_bundle, zoo
from factformer.data.normalization import Normalizer
from factformer.errors import UserError

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
        description.write_text(json.dumps({**json.loads(description.read_text()), "version": 99}))
    elif kind == "unknown key":
        values = json.loads(description.read_text())
        values["config"]["colour"] = "red"
        description.write_text(json.dumps(values))
    elif kind == "text for numbers":
        values = json.loads(description.read_text())
        values["normalization"]["context_mean"] = "zero"
        description.write_text(json.dumps(values))
    elif kind == "too many deviations":
        values = json.loads(description.read_text())
        values["normalization"]["state_std"] += [1.0]
        description.write_text(json.dumps(values))
    elif kind == "no description":
        description.unlink()


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("truncated", "does not match its checksum"),
        ("missing", "has no model.safetensors"),
        ("half a description", "not valid JSON"),
        ("foreign", "not written by factformer"),
        ("future", "version 99"),
        ("unknown key", "unknown key 'model.colour'"),
        ("text for numbers", "not a complete bundle description"),
        ("too many deviations", "the normaliser's state_std has"),
        ("no description", "is not a bundle"),
    ],
)
def test_damage_is_one_clear_line(surrogate, tmp_path, kind, words):
    path = save_bundle(surrogate, tmp_path / "b")
    damage(path, kind)
    with pytest.raises(ValueError, match=words) as error:
        load(path)
    assert "\n" not in str(error.value)


def test_names_and_missing_paths(surrogate, tmp_path, monkeypatch):
    save_bundle(surrogate, tmp_path / "box-4")
    monkeypatch.setenv("FACTFORMER_ZOO", str(tmp_path))
    assert "box-4" in zoo()
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


def test_a_run_that_was_stopped_says_how_to_go_on(tmp_path):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    with pytest.raises(UserError, match="train --resume --out"):
        load(tmp_path / "run")
