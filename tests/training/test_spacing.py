"""Patch and stride that follow from the data: what is measured, when they are raised, and who wins over them."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from factformer import Field, Grid, Problem, fit
from factformer.data.store import ArrayDataset
from factformer.errors import UserError
from factformer.surrogate import model_config
from factformer.training.experiment.defaults import default_experiment, experiment_of_data
from factformer.training.experiment.spacing import choose_spacing, measure

SIZE = 64
TINY = {"model.dim": 8, "model.depth": 1, "model.heads": 2, "model.head_dim": 4, "model.kernel_dim": 4}


def problem(shape=(SIZE, SIZE), **changes) -> Problem:
    grid = Grid(shape, 2 * math.pi, True)
    return replace(Problem("w", grid, (Field("u"),), frame_dt=0.5, num_context_frames=2, horizon=8), **changes)


def travelling(wavenumber: int, speed: float, shape=(SIZE, SIZE), frames: int = 40) -> torch.Tensor:
    """cos(k x - speed t) along the first axis, the same along the others."""
    x = torch.arange(shape[0], dtype=torch.float64) * 2 * math.pi / shape[0]
    t = torch.arange(frames, dtype=torch.float64)
    wave = torch.cos(wavenumber * x - speed * t[:, None])
    wave = wave.reshape(1, frames, shape[0], *[1] * (len(shape) - 1), 1)
    return wave.expand(2, frames, *shape, 1).float()


def chosen(frames, case=None, model="factformer_plus", assignments=()):
    case = case or problem(tuple(frames.shape[2:-1]))
    found = choose_spacing(ArrayDataset(frames, case), model_config(model), assignments)
    return found.patch, found.stride


def test_a_wave_is_measured_as_its_formula_says():
    for wavenumber, speed in ((2, 0.05), (7, 0.3)):
        detail, increment = measure(ArrayDataset(travelling(wavenumber, speed), problem()))
        assert detail == pytest.approx(math.sin(math.pi * wavenumber / SIZE) ** 2, rel=1e-4)
        assert increment == pytest.approx(2 * math.sin(speed), rel=1e-2)


def test_each_is_raised_by_its_own_measure():
    assert chosen(travelling(2, 0.05)) == (2, 2)
    assert chosen(travelling(20, 0.05)) == (1, 2)  # too fine for patches
    assert chosen(travelling(2, 0.5)) == (2, 1)  # too fast for a stride
    assert chosen(torch.randn(2, 40, SIZE, SIZE, 1)) == (1, 1)


def test_the_worst_field_decides_and_a_constant_one_does_not():
    smooth, fine = travelling(2, 0.05), travelling(20, 0.5)
    two = problem(state=(Field("u"), Field("v")))
    assert chosen(torch.cat([smooth, fine], -1), two) == (1, 1)
    assert chosen(torch.cat([smooth, torch.ones_like(smooth)], -1), two) == (2, 2)
    assert chosen(torch.ones(2, 40, SIZE, SIZE, 1)) == (1, 1)


@pytest.mark.parametrize(
    ("shape", "frames", "expected"),
    [((32, 32), 40, (1, 1)), ((SIZE,), 40, (1, 1)), ((SIZE, 65), 40, (1, 2)), ((SIZE, SIZE), 20, (2, 1))],
)
def test_small_odd_short_and_unmeasured_data_keep_1(shape, frames, expected):
    assert chosen(travelling(2, 0.05, shape, frames)) == expected


def test_an_odd_horizon_is_not_cut():
    assert chosen(travelling(2, 0.05), problem(horizon=5)) == (2, 1)


def test_what_the_user_says_wins():
    frames = travelling(2, 0.05)
    assert chosen(frames, assignments=["model.patch=1"]) == (1, 2)
    assert chosen(frames, assignments=["protocol.stride=1"]) == (2, 1)
    assert chosen(frames, model=model_config("factformer_plus").replace(patch=4)) == (1, 2)
    assert chosen(frames, assignments=["training.init=somewhere"]) == (1, 1)
    assert chosen(frames, model="fno") == (1, 1)
    kept = default_experiment(
        ArrayDataset(frames, problem()), model_config("factformer_plus").replace(patch=4), 10, ["protocol.stride=4"]
    )
    assert (kept.model.patch, kept.protocol.stride) == (4, 4)


def test_a_quiet_fit_still_says_what_a_frame_is(caplog):
    fit(travelling(2, 0.05), grid=problem().grid, fields=["u"], updates=1, settings=TINY, progress=False)
    assert ["protocol.stride=2" in line for line in caplog.messages] == [True]


def test_fit_says_so_and_the_surrogate_knows_its_interval(capsys, tmp_path):
    frames = travelling(2, 0.05)
    given = {"grid": problem().grid, "fields": ["u"], "frame_dt": 0.5, "num_context_frames": 2, "settings": TINY}
    surrogate = fit(frames, updates=1, out=tmp_path / "run", **given)
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("from the data")]
    assert "model.patch=2" in line and "protocol.stride=2" in line and "frame_dt is 1)" in line
    assert surrogate.config.patch == 2
    assert surrogate.problem.frame_dt == 1.0
    again = fit(frames, updates=2, out=tmp_path / "run", resume=True, **given)
    assert again.problem.frame_dt == 1.0 and "from the data" not in capsys.readouterr().err
    plain = fit(frames, updates=1, **{**given, "settings": {**TINY, "model.patch": 1, "protocol.stride": 1}})
    assert plain.config.patch == 1 and plain.problem.frame_dt == 0.5
    assert "from the data" not in capsys.readouterr().err


def test_a_run_that_began_without_a_choice_is_resumed_as_it_was(tmp_path):
    frames = travelling(2, 0.05)
    given = {"grid": problem().grid, "fields": ["u"], "num_context_frames": 2, "progress": False}
    fit(frames, updates=1, out=tmp_path / "run", settings={**TINY, "model.patch": 1, "protocol.stride": 1}, **given)
    again = fit(frames, updates=2, out=tmp_path / "run", resume=True, settings=TINY, **given)
    assert again.config.patch == 1 and again.problem.frame_dt == 1.0


def test_data_that_are_not_there_are_named():
    with pytest.raises(UserError, match="there is no data"):
        experiment_of_data(["data.path=nowhere"])
    assert np.isnan(
        choose_spacing(
            ArrayDataset(travelling(2, 0.1, (SIZE,)), problem((SIZE,))), model_config("factformer_plus"), ()
        ).detail
    )
