"""Sizes that no computer has are refused in one line before anything is built."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from factformer.config import apply_overrides
from factformer.data import generate
from factformer.errors import UserError
from factformer.grid import Grid
from factformer.problem import Field, Problem
from factformer.surrogate import build_surrogate

PROBLEM = Problem("waves", Grid((8, 8), 1.0, True), (Field("u"),))


def test_a_model_larger_than_the_memory_is_never_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("factformer._support.limits.available_memory", lambda: 10**9)
    with pytest.raises(UserError, match=r"a factformer of .* parameters takes about .* GB of memory"):
        build_surrogate(PROBLEM, dim=12_000)
    with pytest.raises(UserError, match=r"a fno of .* parameters takes about"):
        build_surrogate(PROBLEM, "fno", modes=512)


def test_the_estimate_leaves_the_weights_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    states = []
    for large in (False, True):
        monkeypatch.setattr("factformer.surrogate._is_large", lambda *_, large=large: large)
        torch.manual_seed(0)
        states.append(build_surrogate(PROBLEM, dim=16, depth=1).state_dict())
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


@pytest.mark.parametrize("key", ["dim", "depth", "heads"])
def test_sizes_of_models_are_bounded(key: str) -> None:
    with pytest.raises(UserError, match=f"model.{key}: .*less than or equal to"):
        build_surrogate(PROBLEM, **{key: 10**9})


def test_a_trillion_trajectories_are_refused_at_once(tmp_path) -> None:
    with pytest.raises(UserError, match="at most 1000000, got 1000000000000"):
        generate("kolmogorov_flow", tmp_path, preset="tiny", trajectories=10**12)
    with pytest.raises(UserError, match=r"points along an axis|of memory"):
        generate("kolmogorov_flow", tmp_path, preset="tiny", resolution=10**6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((10**9,), 1.0, True), "at most 16777216 points along an axis"),
        (((10**7, 10**7), 1.0, True), "in all"),
        (((8,), 1e-300, True), "lengths lie between"),
        (((8,), "long", True), "extent cannot be 'long'"),
    ],
)
def test_grids_that_cannot_be_are_refused(arguments, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Grid(*arguments)


def test_coordinates_of_a_mesh_are_no_coordinates_of_an_axis() -> None:
    x, y = np.meshgrid(np.arange(4.0), np.arange(5.0), indexing="ij")
    with pytest.raises(UserError, match=r"coordinates of axis 0 .* got an array of shape \(4, 5\)"):
        Grid.from_axes([x, y])
    with pytest.raises(UserError, match="list of numbers"):
        Grid.from_axes([["a", "b"]])


def test_an_unfinished_list_in_set_is_one_line() -> None:
    with pytest.raises(UserError, match=r"--set model\.dim='\[' is not valid YAML") as error:
        apply_overrides({"model": {"dim": 1}}, ["model.dim=["])
    assert "\n" not in str(error.value)
