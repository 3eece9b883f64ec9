"""Names, order of arguments, shapes and options that other people's code relies on."""

import inspect
import math
import sys

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

import factformer
from factformer import Batch, Field, Grid, Problem
from factformer.cli import build_app, main
from factformer.nn import FactorizedAttention

PUBLIC = {"Batch", "Field", "Grid", "Problem", "Surrogate", "build_surrogate", "export", "fit", "load", "rollout"} | {
    "simulate",
    "study",
}
GRID = Grid((6, 5), (2 * math.pi, 1.0), (True, False))
SIZES = {"model.dim": 8, "model.depth": 1, "model.heads": 2, "model.head_dim": 4, "model.kernel_dim": 4}
COMMANDS = ["list", "demo", "generate", "convert", "plan", "train", "evaluate", "rollout", "inspect", "benchmark"]
COMMANDS += ["report", "reproduce", "study", "export", "serve", "zoo list", "zoo pull", "zoo verify"]


def parameters(function):
    return inspect.signature(function).parameters


def test_public_names():
    assert set(factformer.__all__) == PUBLIC
    assert all(getattr(factformer, name) is not None for name in PUBLIC)


def test_parts_of_a_problem_and_of_a_batch():
    assert list(parameters(Problem))[:6] == ["name", "grid", "state", "static", "forcing", "parameters"]
    rest = ["frame_dt", "num_context_frames", "horizon", "boundary", "masked"]
    assert list(parameters(Problem))[6:] == rest
    plain = Problem("waves", Grid(8, 1.0, True), (Field("u"),), num_context_frames=0, static=(Field("a"),), horizon=1)
    assert plain.steady and (plain.forcing, plain.parameters, plain.masked) == ((), (), False)
    assert Batch._fields == ("context", "static", "forcing", "parameters", "mask")
    batch = Batch(torch.zeros(1, 2, 8, 1), mask=torch.ones(1, 8, dtype=torch.bool))
    assert len(pytree.tree_leaves(batch)) == 5
    with pytest.raises(AttributeError):
        batch.context = None
    moved = batch.to(torch.float64)
    assert moved.context.dtype == torch.float64 and moved.mask.dtype == torch.bool


@pytest.mark.parametrize(
    ("function", "first", "by_name"),
    [
        (Grid, ["shape", "extent", "periodic", "points"], []),
        (FactorizedAttention, ["num_axes", "dim", "heads", "head_dim", "kernel_dim"], []),
        (FactorizedAttention.forward, ["self", "u", "grid", "mask"], []),
        (FactorizedAttention.axial_kernels, ["self", "u", "grid"], []),
        (factformer.Surrogate.forward, ["self", "batch", "num_steps"], []),
        (factformer.load, ["path"], ["models"]),
        (factformer.simulate, ["pde", "initial", "num_frames", "frame_dt"], ["dtype", "device"]),
        (factformer.fit, ["train_array"], ["grid", "frame_dt", "fields", "static", "forcing", "parameters", "mask"]),
        (factformer.fit, ["train_array"], ["valid", "model", "init", "updates", "settings", "loss_terms", "metrics"]),
    ],
)
def test_arguments(function, first, by_name):
    found = parameters(function)
    assert list(found)[: len(first)] == first
    assert all(found[name].kind is inspect.Parameter.KEYWORD_ONLY for name in by_name)


def test_roll_out_takes_everything_by_name():
    found = list(parameters(factformer.rollout))
    assert found[0] == "surrogate" and found[2] == "num_frames"
    assert {"static", "forcing", "parameters", "mask"} <= set(found)


@pytest.mark.parametrize("shape", [(7,), (5, 6), (3, 5, 4), (2, 3, 4, 5)])
def test_attention_in_a_module_of_ones_own(shape):
    class Mine(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = FactorizedAttention(len(shape), 8, 2, 4, 4)

        def forward(self, u, grid):
            return u + self.attention(u, grid)

    u, grid, mine = torch.randn(2, *shape, 8), Grid(shape, 1.0, True), Mine()
    assert mine(u, grid).shape == u.shape
    assert mine.attention(u, grid, torch.rand(2, *shape) > 0.3).shape == u.shape
    kernels = mine.attention.axial_kernels(u, grid)
    assert [tuple(kernel.shape) for kernel in kernels] == [(2, 2, size, size) for size in shape]
    assert FactorizedAttention.forward.__doc__


def test_weights_of_every_kind_of_axis_add_up_to_one():
    stretched = Grid.from_axes([np.array([0.0, 0.1, 0.4, 1.0]), np.linspace(0, 1, 5)])
    for grid in (GRID, stretched, Grid((4, 6), 1.0, False, "cells")):
        for axis in range(2):
            assert grid.weights(axis).sum() == pytest.approx(1)
    assert torch.allclose(stretched.weights(0).double(), torch.tensor([0.05, 0.2, 0.45, 0.3]).double())


def test_a_steady_equation_takes_its_coefficient_alone():
    coefficient = torch.where(torch.rand(2, 9, 9, 1, generator=torch.Generator().manual_seed(0)) > 0.5, 12.0, 3.0)
    assert factformer.simulate("darcy_flow", coefficient).shape == (2, 1, 9, 9, 1)


def test_fit_and_roll_out_with_every_part(tmp_path):
    draw = np.random.default_rng(0)
    frames, depth, inflow = (
        draw.normal(size=(3, 8, 6, 5, 1)),
        draw.normal(size=(3, 6, 5)),
        draw.normal(size=(3, 8, 6, 5)),
    )
    inside = np.ones((6, 5), bool)
    inside[2, 2] = False
    surrogate = factformer.fit(
        frames,
        grid=GRID,
        frame_dt=0.1,
        fields=["u"],
        static={"depth": depth},
        forcing={"inflow": inflow},
        parameters={"reynolds": np.array([100.0, 200.0, 300.0])},
        mask=inside,
        updates=1,
        settings=SIZES,
        progress=False,
        out=tmp_path / "run",
    )
    known = {
        "static": {"depth": depth},
        "forcing": {"inflow": inflow},
        "parameters": {"reynolds": 150.0},
        "mask": inside,
    }
    predicted = list(factformer.rollout(surrogate, frames[:, :4], 3, **known))
    assert [tuple(frame.shape) for frame in predicted] == [(3, 6, 5, 1)] * 3
    assert not predicted[-1][:, 2, 2].any()
    batch = Batch.of(surrogate.problem, frames[:, :4], **known)
    assert torch.equal(surrogate(batch, num_steps=1)[:, 0], predicted[0])
    assert factformer.load(tmp_path / "run").problem == surrogate.problem
    finer = factformer.fit(
        frames, grid=GRID, frame_dt=0.1, fields=["u"], init=tmp_path / "run", updates=1, progress=False
    )
    assert finer.problem.static == () and finer.config == surrogate.config


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_says_what_it_takes_within_80_columns(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as stopped:
        main([*command.split(), "--help"])
    said = capsys.readouterr().out
    assert stopped.value.code == 0
    assert max(map(len, said.splitlines())) <= 80
    assert "--json" in said and "Example" in said
    several = said.partition("Examples:\n")[2].partition("\n\n")[0]
    assert all(line.startswith("  factformer ") for line in several.splitlines())


def test_all_commands_are_known_here():
    names = {item.name or item.callback.__name__ for item in build_app().registered_commands}
    assert {name.split()[0] for name in COMMANDS} == names | {"zoo"}


def test_lines_of_the_list_are_folded_in_a_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    with pytest.raises(SystemExit):
        main(["list"])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80
