"""Training on one's own arrays; the how-to page runs as it is written."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from small_waves import TINY_MODEL, wave_data, wave_problem, waves

import factformer
from factformer import Field, Grid, Problem, fit
from factformer.arrays import as_tensor, joined_parameters
from factformer.data.dataset import ArrayDataset
from factformer.data.layout import Contents
from factformer.data.store import open_dataset
from factformer.data.writer import SplitWriter
from factformer.errors import UserError
from factformer.models._backbone import check_model
from factformer.training.experiment.defaults import default_experiment
from factformer.training.experiment.definition import Experiment

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


def test_a_run_that_has_noted_an_old_default_of_the_resolution_goes_on(tmp_path):
    dataset, _ = wave_data()
    options = {"updates": 2, "settings": SETTINGS, "progress": False, "out": tmp_path / "run"}
    first = factformer.fit(dataset, **options)
    config = tmp_path / "run" / "config.yaml"
    config.write_text(config.read_text().replace("resolution: null", "resolution: 64"))
    again = factformer.fit(dataset, **options, resume=True)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    with pytest.raises(UserError, match="comes from another dataset"):
        factformer.fit(ArrayDataset(waves(2), wave_problem()), **options, resume=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"extent": 50.0}, "another problem: grid extent"),
        ({"periodic": False}, "another problem: periodic axes"),
        ({"num_context_frames": 2}, "another problem: 3 context frames expected, 2 found"),
    ],
)
def test_a_run_does_not_go_on_with_another_reading_of_its_data(tmp_path, change, message):
    problem = wave_problem()
    writer = SplitWriter(tmp_path / "train.hdf5", Contents(problem, "train", 2, 12))
    writer.prepare()
    for batch in writer.pending(2):
        with writer.batch(batch) as output:
            for frame in waves(2)[batch.start : batch.stop].unbind(1):
                output.write(frame.numpy())
    writer.finish()
    options = {"updates": 1, "settings": SETTINGS, "progress": False, "out": tmp_path / "run"}
    factformer.fit(open_dataset(tmp_path / "train.hdf5"), **options)
    factformer.fit(open_dataset(tmp_path / "train.hdf5", horizon=2), **options, resume=True)
    with pytest.raises(UserError, match=message):
        factformer.fit(open_dataset(tmp_path / "train.hdf5", **change), **options, resume=True)


def test_a_run_is_replaced_only_if_asked_for(tmp_path):
    options = {"updates": 1, "settings": SETTINGS, "progress": False, "out": tmp_path / "run"}
    factformer.fit(wave_data()[0], **options)
    with pytest.raises(UserError, match="overwrite=True"):
        factformer.fit(wave_data()[0], **options)
    other = ArrayDataset(waves(2), wave_problem())
    with pytest.raises(UserError, match=r"another dataset.*overwrite=True"):
        factformer.fit(other, **options, resume=True)
    factformer.fit(other, **options, overwrite=True)


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
        2 * inputs,
        static={"a": inputs[:, 0]},
        num_context_frames=0,
        fields=["u"],
        grid=wave_problem().grid,
        updates=3,
        settings=SETTINGS,
        progress=False,
    )
    assert surrogate.problem.steady
    assert surrogate(inputs[:2], 1).shape == (2, 1, 8, 8, 1)


def test_the_callers_random_numbers_are_left_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    factformer.fit(wave_data()[0], updates=1, settings=SETTINGS, progress=False)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize(
    ("change", "advice"),
    [
        (lambda a: a.movedim(-1, 2), "numpy.moveaxis(array, 2, -1)"),
        (lambda a: a[..., 0], "array[..., None]"),
        (lambda a: a[0], "the only trajectory with array[None]"),
        (lambda a: a.swapaxes(2, 3), "array.swapaxes(2, 3)"),
        (lambda a: a[:, :, :3], "got (2, 12, 3, 5, 1)"),
    ],
)
@pytest.mark.parametrize("mapped", [False, True])
def test_axes_in_another_order_are_named(change, advice, mapped, tmp_path):
    array = change(torch.randn(2, 12, 6, 5, 1)).numpy()
    np.save(tmp_path / "frames.npy", array)
    given = np.load(tmp_path / "frames.npy", mmap_mode="r") if mapped else array
    with pytest.raises(UserError, match=r"frames must have shape \(trajectory, frame, 6, 5, 1\), got") as raised:
        factformer.fit(given, grid=Grid((6, 5), 1.0, True), fields=["a"])
    assert str(raised.value).endswith(advice)


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        ({"static": {"depth": np.ones((2, 3, 6, 5))}}, "numpy.moveaxis(array, 1, -1)"),
        ({"static": {"depth": np.ones((2, 5, 6))}}, "array.swapaxes(1, 2)"),
        ({"static": {"depth": np.ones((6, 5))}}, "got (6, 5)"),
        ({"forcing": {"inflow": np.ones((2, 12, 2, 6, 5))}}, "numpy.moveaxis(array, 2, -1)"),
        ({"mask": np.ones((5, 6), dtype=bool)}, "got (5, 6); exchange two axes with array.swapaxes(0, 1)"),
        ({"mask": np.ones((2, 5, 6), dtype=bool)}, "array.swapaxes(1, 2)"),
    ],
)
def test_axes_of_what_is_known_beside_the_frames_are_named(given, advice):
    with pytest.raises(UserError, match="must have shape") as raised:
        factformer.fit(torch.randn(2, 12, 6, 5, 1), grid=Grid((6, 5), 1.0, True), fields=["a"], **given)
    assert str(raised.value).endswith(advice)


class Table:
    """What data frames and arrays of other libraries have in common: they can be made an array."""

    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.values, dtype)

    def __getitem__(self, name):
        raise KeyError(name)


def test_arrays_of_other_libraries_and_sequences_of_arrays():
    frames, drag = torch.randn(3, 8, 8, 1), [0.1, 0.2, 0.3]
    expected = as_tensor(frames, "frames")
    for given in (Table(frames.numpy()), list(frames), tuple(frames.numpy()), frames.tolist()):
        assert torch.equal(as_tensor(given, "frames"), expected)
    assert torch.equal(
        joined_parameters({"drag": Table(drag)}, ["drag"], 3)[:, 0], torch.tensor(drag, dtype=torch.float64)
    )
    with pytest.raises(UserError, match="must be an array of numbers, got list"):
        as_tensor([np.zeros(3), np.zeros(4)], "frames")
    with pytest.raises(UserError, match=r"got 'frames.npy'; load a file with numpy.load"):
        as_tensor("frames.npy", "frames")
    with pytest.raises(UserError, match="this problem has no parameters: leave out drag"):
        joined_parameters({"drag": drag}, [], 3)


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
    with pytest.raises(UserError, match="takes arrays by name"):
        factformer.fit(waves(2), grid=grid, fields=["a"], static=waves(2))
    with pytest.raises(UserError, match=r"must have shape \(2, 8, 8\), for \(trajectory, \*grid\)"):
        factformer.fit(waves(2), grid=grid, fields=["a"], static={"b": waves(2)})


def test_a_dataset_is_not_contradicted():
    with pytest.raises(UserError, match=r"grid=, num_context_frames="):
        factformer.fit(wave_data()[0], grid=wave_problem().grid, num_context_frames=2)
    with pytest.raises(UserError, match=r"data\.num_context_frames is decided by the data"):
        factformer.fit(wave_data()[0], settings={"data.num_context_frames": 2})


def test_arrays_of_any_make():
    grid, frames = wave_problem().grid, waves(2).numpy()
    options = {"grid": grid, "fields": ["u"], "updates": 1, "settings": SETTINGS, "progress": False}
    plain = factformer.fit(frames, **options)
    for other in (frames.astype(">f8"), frames[:, :, ::-1][:, :, ::-1]):
        other.flags.writeable = False
        same = factformer.fit(other, **options)
        assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), same.parameters(), strict=True))
    with pytest.raises(UserError, match="complex"):
        factformer.fit(frames * 1j, **options)
    with pytest.raises(UserError, match="takes a Grid"):
        factformer.fit(frames, **{**options, "grid": (8, 8)})
    rolled = list(factformer.rollout(plain, frames[:, :4].astype("float64"), 2))
    assert rolled[0].shape == (2, 8, 8, 1)


def test_settings_are_values_of_any_kind_and_sections_are_merged():
    settings = {**SETTINGS, "model.local_dilations": (1, 2), "training": {"batch_size": 2}}
    surrogate = factformer.fit(wave_data()[0], updates=1, settings=settings, progress=False)
    assert surrogate.config.local_dilations == (1, 2)
    training = surrogate.provenance["training"]
    assert (training["batch_size"], training["updates"], training["optimizer"]) == (2, 1, "muon")


def test_a_flow_that_starts_from_rest_is_learned():
    frames = waves(3)
    frames[:, :9] = 0
    frames[0] = 0
    surrogate = factformer.fit(
        frames,
        grid=wave_problem().grid,
        fields=["u"],
        updates=10,
        settings=SETTINGS,
        progress=False,
        valid_array=frames,
    )
    assert all(bool(torch.isfinite(weight).all()) for weight in surrogate.parameters())
    with pytest.raises(UserError, match="leave none to predict"):
        factformer.fit(
            waves(2),
            grid=wave_problem().grid,
            fields=["u"],
            updates=1,
            settings=SETTINGS,
            progress=False,
            valid_array=waves(1)[:, :4],
        )


def errors_of(frames, fields, updates=60):
    grid = Grid((16,), 2 * math.pi, True)
    surrogate = fit(frames, grid=grid, fields=fields, updates=updates, settings=SETTINGS, progress=False)
    context = torch.as_tensor(frames[:, :4], dtype=torch.float32)
    with torch.no_grad():
        predicted = torch.stack(list(factformer.rollout(surrogate, context, 4)), 1).double()
    truth = torch.as_tensor(frames[:, 4:8])
    return [float((predicted - truth)[..., c].norm() / truth[..., c].norm()) for c in range(frames.shape[-1])]


def line_waves():
    x, t = np.arange(16) / 16 * 2 * math.pi, 0.1 * np.arange(12)[:, None]
    return np.stack([np.sin(x + t + phase) for phase in range(6)])[..., None]


@pytest.mark.parametrize("level", [0.0, 7.0])
def test_a_field_that_never_changes_costs_the_others_nothing(level):
    frames = line_waves()
    beside, still = errors_of(np.concatenate([frames, np.full_like(frames, level)], -1), ["u", "still"], 150)
    assert beside < 0.02
    if level:
        assert still < 1e-6


def test_a_field_that_is_mostly_absent_costs_the_others_little():
    frames = line_waves()
    rare = np.zeros_like(frames)
    rare[0] = frames[3]
    assert errors_of(np.concatenate([frames, rare], -1), ["u", "rare"], 300)[0] < 0.1


@pytest.mark.parametrize("factor", [1e19, 1e-25])
def test_any_unit_learns_the_same(factor):
    frames = line_waves()
    assert errors_of(factor * frames, ["u"])[0] == pytest.approx(errors_of(frames, ["u"])[0], rel=0.02)


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        (101325 + 1e-4 * line_waves(), r"varies by 7\.07e-05 around 101325, of which float32 keeps too little"),
        (1e60 * line_waves(), "beyond the numbers of float32"),
        (np.ma.masked_less(line_waves(), -0.9), "masked in places"),
    ],
)
def test_numbers_that_would_be_lost_are_refused(frames, message):
    with pytest.raises(UserError, match=message):
        fit(frames, grid=Grid((16,), 2 * math.pi, True), fields=["u"], updates=1, settings=SETTINGS)


def test_noise_has_no_place_in_a_steady_problem():
    with pytest.raises(UserError, match=r"training\.noise"):
        factformer.fit(
            waves(2, num_frames=1),
            static={"a": waves(2, num_frames=1)[:, 0]},
            num_context_frames=0,
            fields=["u"],
            updates=1,
            grid=wave_problem().grid,
            settings={**SETTINGS, "training.noise": 0.1},
            progress=False,
        )


def test_the_page_s_run_file_is_what_fit_does():
    (block,) = re.findall(r"```yaml\n# plate-run.yaml\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    said = yaml.safe_load(block)
    problem = Problem("plate", Grid((8, 8), 1.0, True), (Field("u"),), num_context_frames=4, horizon=16)
    ours = default_experiment(ArrayDataset(torch.randn(1, 20, 8, 8, 1), problem), "factformer_plus", 1000).model_dump()
    parsed = Experiment.parse(said).model_dump()
    for section in ("model", "protocol", "training"):
        for key in said[section]:
            assert parsed[section][key] == ours[section][key], key
    assert parsed["model"] == ours["model"] and parsed["protocol"] == ours["protocol"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"horizon": 0}, "horizon at least 1"),
        ({"frame_dt": float("nan")}, "frame_dt must be positive"),
        ({"horizon": 100}, "horizon=100, but of 6 frames 2 are left"),
        ({"horizon": 1.5}, "whole number"),
        ({"boundary": "zero"}, "every axis is periodic"),
        ({"resume": True}, "needs out="),
        ({"settings": ["model.dim=16"]}, "takes a mapping"),
        ({"valid_array": {"static": {}}}, "without frames"),
        ({"valid_array": {"frame": 1}}, "did you mean 'frames'"),
        ({"num_context_frames": 0}, "needs static fields"),
        ({"static": {"k": torch.randn(2, 8, 8)}, "num_context_frames": 0}, "one frame"),
        (
            {"static": {"k": torch.randn(2, 8, 8)}, "num_context_frames": 0, "horizon": 3},
            "steady problem, which has no",
        ),
        ({"parameters": {"re": torch.ones(3)}}, "one number per sample, 2"),
        ({"mask": torch.full((8, 8), 2.0)}, "1 inside the domain and 0 outside"),
        ({"forcing": {"f": torch.randn(2, 5, 8, 8)}}, "forcing .* must have shape"),
        ({"num_context_frames": 2.0}, "whole number"),
        ({"machine": "cuda"}, "takes a Machine"),
        ({"fields": {"u": "1"}}, "one channel or more"),
        ({"fields": {"u": 1, "v": 0}}, "one channel or more"),
        ({"fields": ["u/v"]}, "without a slash"),
        ({"fields": ["u" * 250]}, "at most 100 characters"),
        ({"fields": ["u\x1b[31m"]}, "name is printable"),
        ({"frame_dt": torch.arange(6.0)}, "one number, the time between frames, not an array"),
        ({"frame_dt": 1e-300}, "frame_dt must be positive and a number of float32"),
        ({"frame_dt": True}, "frame_dt cannot be True"),
        ({"grid": (8, 8)}, "takes a Grid, such as"),
        ({"settings": {"training.batch_size": 10**9}}, "training.batch_size: .*less than or equal to"),
        ({"settings": {"training.batch_size": 2**20}}, "a batch of 1048576 windows .* takes about"),
        ({"settings": {"model.depth": 10**9}}, "model.depth: .*less than or equal to"),
    ],
)
def test_arguments_without_meaning_are_refused(arguments, message):
    with pytest.raises(UserError, match=message):
        fit(torch.randn(2, 6, 8, 8, 1), **{"grid": Grid((8, 8), 1.0, True), "fields": ["u"], **arguments})


def test_a_data_array_of_xarray_is_told_what_to_call():
    class DataArray:
        """As xarray's, which need not be installed: names of axes and values."""

        dims, values = ("n", "t", "x", "y", "c"), torch.randn(2, 6, 8, 8, 1).numpy()

    with pytest.raises(UserError, match=r"an xarray DataArray: give its numbers, \.transpose\(\.\.\.\)\.values"):
        fit(DataArray(), grid=Grid((8, 8), 1.0, True), fields=["u"])


def test_an_array_of_names_is_no_array_of_numbers():
    with pytest.raises(UserError, match="must be an array of numbers, got list"):
        fit([["a"]], grid=Grid((8, 8), 1.0, True), fields=["u"])


def test_validation_frames_without_their_parameters_say_how_they_are_given():
    frames, grid = np.random.default_rng(0).standard_normal((3, 8, 8, 6, 1)), Grid((8, 6), 1.0, True)
    given = {"grid": grid, "fields": ["u"], "num_context_frames": 2, "updates": 1, "settings": SETTINGS}
    with pytest.raises(UserError, match=r"valid= need .*speed.*: valid=\{'frames': …, 'parameters': …\}"):
        fit(frames, parameters={"speed": np.ones(3)}, valid=frames, progress=False, **given)


def test_a_setting_that_is_an_argument_as_well_is_said_once():
    frames, grid = np.zeros((3, 8, 8, 6, 1)), Grid((8, 6), 1.0, True)
    with pytest.raises(UserError, match=r"updates= and the setting training\.updates"):
        fit(frames, grid=grid, fields=["u"], updates=3, settings={"training.updates": 5}, progress=False)


def test_a_validation_array_of_nan_is_named():
    frames = torch.randn(2, 6, 8, 8, 1)
    with pytest.raises(UserError, match="frames of the valid split hold NaN"):
        fit(frames, valid_array=frames * float("nan"), grid=Grid((8, 8), 1.0, True), fields=["u"])


def test_a_class_that_is_no_backbone_is_one_line():
    with pytest.raises(UserError, match="dict"):
        check_model(dict)
