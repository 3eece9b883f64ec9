"""Training on one's own arrays; the how-to page runs as it is written."""

import re
from pathlib import Path

import pytest
import torch
from small_waves import TINY_MODEL, wave_data, wave_problem, waves

import factformer
from factformer.errors import UserError

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "own-data.md"
SETTINGS = {f"model.{key}": value for key, value in TINY_MODEL.items() if key != "name"}


def test_the_how_to_page_runs_as_written(capsys):
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert len(blocks[0].strip().splitlines()) <= 14  # ten lines and their imports
    names: dict = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    assert names["future"].shape == (2, 20, 16, 16, 1)
    assert names["answer"].shape == (2, 1, 16, 16)
    assert names["train_on_the_well"]
    context, truth = names["context"], torch.as_tensor(names["frames"][10:, 4:24])
    persistence = (context[:, -1:] - truth).norm() / truth.norm()
    error = (names["future"] - truth).norm() / truth.norm()
    assert error < persistence


def test_a_dataset_brings_its_problem_along(tmp_path):
    dataset, held_out = wave_data()
    surrogate = factformer.fit(
        dataset, valid_array=held_out, updates=3, settings=SETTINGS, progress=False, out=tmp_path / "run"
    )
    assert surrogate.problem == wave_problem()
    assert not surrogate.training
    assert (tmp_path / "run" / "bundle" / "bundle.json").exists()


def test_our_model_goes_frame_by_frame_and_others_march():
    dataset, _ = wave_data()
    ours = factformer.fit(dataset, updates=1, settings=SETTINGS, progress=False)
    theirs = factformer.fit(dataset, model="factformer", updates=1, settings=SETTINGS, progress=False)
    assert (ours.config.name, ours.marching_steps) == ("factformer_plus", 1)
    assert ours.provenance["training"]["optimizer"] == "muon"
    assert ours.provenance["protocol"]["pushforward"] == 3
    assert (theirs.config.name, theirs.marching_steps) == ("factformer", 4)
    assert theirs.provenance["training"]["optimizer"] == "adamw"


def test_a_steady_problem(tmp_path):
    inputs = waves(6, num_frames=1)
    surrogate = factformer.fit(
        2 * inputs, inputs=inputs, input_fields=["a"], fields=["u"], grid=wave_problem().grid,
        updates=3, settings=SETTINGS, progress=False,
    )  # fmt: skip
    assert surrogate.problem.steady
    assert surrogate(inputs[:2], 1).shape == (2, 1, 8, 8, 1)


def test_the_callers_random_numbers_are_left_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    factformer.fit(wave_data()[0], updates=1, settings=SETTINGS, progress=False)
    assert torch.equal(torch.rand(3), expected)


def test_mistakes_are_named():
    grid = wave_problem().grid
    with pytest.raises(UserError, match=r"grid= and .* fields="):
        factformer.fit(waves(2))
    with pytest.raises(UserError, match=r"frames must have shape .* got \(2, 12, 8, 8, 1\)"):
        factformer.fit(waves(2), grid=grid, fields=["a", "b"])
    with pytest.raises(UserError, match=r"\(trajectory, frame, \*grid, channel\)"):
        factformer.fit(torch.zeros(3, 4, 5), grid=grid, fields=["a"])
    with pytest.raises(UserError, match="NaN"):
        factformer.fit(waves(2) * float("nan"), grid=grid, fields=["a"])
    with pytest.raises(UserError, match=r"did you mean 'model\.dim'"):
        factformer.fit(waves(2), grid=grid, fields=["a"], settings={"model.dimm": 3})
    with pytest.raises(UserError, match="input_fields"):
        factformer.fit(waves(2), grid=grid, fields=["a"], inputs=waves(2))
