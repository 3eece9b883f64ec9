"""Parameters of a dataset that differ between trajectories: `generate --set parameters.reynolds=200..2000:log`."""

from __future__ import annotations

import math
from pathlib import Path

import h5py
import pytest
import torch

from factformer import catalog, simulate
from factformer.data import generate, open_dataset, trajectory_seed
from factformer.data.generate.simulated import simulate_splits
from factformer.errors import UserError
from factformer.pdes import Preset, Settings, find_pde
from factformer.pdes._common.ranges import Range

NAME = "kolmogorov_flow"
BOTH = ["parameters.reynolds=100..1000:log", "parameters.forcing_wavenumber=2..6"]


@pytest.fixture(scope="module")
def flows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("flows")
    generate(NAME, folder, preset="tiny", splits=["train", "test"], trajectories=4, settings=BOTH)
    return folder


def test_values_are_stored_as_the_well_s_sample_varying_scalars(flows: Path) -> None:
    data = open_dataset(flows, "train")
    assert data.problem.parameters == ("reynolds", "forcing_wavenumber")
    values = data.read(slice(None), part="parameters")
    assert values.shape == (4, 2)
    reynolds, numbers = values.unbind(1)
    assert ((reynolds >= 100) & (reynolds <= 1000)).all() and len(set(reynolds.tolist())) == 4
    assert torch.equal(numbers, numbers.round()) and ((numbers >= 2) & (numbers <= 6)).all()
    with h5py.File(flows / "train.hdf5") as file:
        assert bool(file["scalars/reynolds"].attrs["sample_varying"])
        assert not bool(file["scalars/drag"].attrs["sample_varying"])
        assert "reynolds" not in file.attrs["simulation_parameters"]
    assert data.provenance["parameters"]["reynolds"] == "100..1000:log"
    assert data.provenance["parameters"]["forcing_wavenumber"] == "2..6"
    assert data.provenance["parameters"]["drag"] == 0.1
    normalizer = data.normalizer()
    assert torch.allclose(normalizer.parameters_mean.double(), values.double().mean(0), rtol=1e-6)


def test_a_stored_flow_is_that_of_its_stored_values(flows: Path) -> None:
    """Each equals the flow that is solved alone, from its seed and with its values as plain numbers."""
    data, pde = open_dataset(flows, "test"), find_pde(NAME)
    plan = pde.presets["tiny"]
    for index, (reynolds, number) in enumerate(data.read(slice(None), part="parameters").tolist()):
        generator = torch.Generator().manual_seed(trajectory_seed(0, "test", index))
        start = pde.sample_initial(pde.grid((48, 48)), [generator], dtype=torch.float32, device="cpu")
        frames = simulate(
            NAME, start, plan.num_dropped + 3, plan.frame_dt, reynolds=reynolds, forcing_wavenumber=int(number)
        )
        stored = pde.downsample(frames[:, plan.num_dropped :], data.problem.grid.shape)
        assert torch.equal(data.read([index], slice(0, 3)), stored)


def test_the_start_is_the_same_with_a_range_and_without(tmp_path: Path) -> None:
    for name, settings in (("fixed", []), ("varied", BOTH[:1])):
        generate(NAME, tmp_path / name, preset="tiny", splits=["test"], settings=["warmup=0", *settings])
    fixed, varied = (open_dataset(tmp_path / name, "test").read([0]) for name in ("fixed", "varied"))
    assert torch.equal(fixed[:, 0], varied[:, 0])
    assert not torch.equal(fixed[:, -1], varied[:, -1])


def varied(name: str) -> list[str]:
    """A range for every parameter that may vary without changing the grid."""
    pde, settings = find_pde(name), []
    given = dict(pde.presets["tiny"].parameters)
    for parameter in pde.varying:
        value = given.get(parameter, getattr(pde.parameters(), parameter))
        if parameter != "extent" and not isinstance(value, str):
            settings.append(f"parameters.{parameter}={value}..{1.25 * value:g}")
    return settings


@pytest.mark.parametrize("name", [name for name in catalog.names("pdes") if varied(name)])
def test_every_equation_gives_the_same_bits_in_any_batch(name: str, tmp_path: Path) -> None:
    contents = set()
    for size in (1, 3):
        out = tmp_path / str(size)
        generate(name, out, preset="tiny", splits=["train"], trajectories=3, batch_size=size, settings=varied(name))
        contents.add((out / "train.hdf5").read_bytes())
    assert len(contents) == 1
    data = open_dataset(out, "train")
    assert data.read(slice(None), part="parameters").std(0).gt(0).any()


def test_a_preset_may_hold_a_range_and_memory_gets_the_same_values(flows: Path) -> None:
    pde = find_pde(NAME)
    tiny = pde.presets["tiny"]
    preset = Preset(**{**vars(tiny), "parameters": {"reynolds": "100..1000:log", "forcing_wavenumber": "2..6"}})
    found = simulate_splits(NAME, preset, {"train": 4, "test": 4})[tiny.resolution]
    for split in ("train", "test"):
        stored = open_dataset(flows, split)
        assert found[split].fingerprint == stored.fingerprint
        for part in ("state", "parameters"):
            assert torch.equal(found[split].read([1, 3], part=part), stored.read([1, 3], part=part))
    for name, value in stored.normalizer().named_buffers():
        assert torch.allclose(value, dict(found["train"].normalizer().named_buffers())[name], rtol=1e-5), name


def test_draws_fill_their_range() -> None:
    draws = torch.tensor([Range(10, 1000, log=True).draw(seed, "reynolds") for seed in range(2000)])
    assert abs((draws < 100).float().mean() - 0.5) < 0.04
    draws = torch.tensor([Range(10, 1000).draw(seed, "reynolds") for seed in range(2000)])
    assert abs((draws < 505).float().mean() - 0.5) < 0.04
    for log in (False, True):
        whole = [Range(4, 10, log, whole=True).draw(seed, "n") for seed in range(2000)]
        assert set(whole) == set(range(4, 11))
    assert abs(whole.count(4) / 2000 - math.log(4.5 / 3.5) / math.log(10.5 / 3.5)) < 0.03


def test_a_range_reads_back_as_it_was_said() -> None:
    pde = find_pde(NAME)
    settings = Settings.parse(pde, {"reynolds": " 2e2..2000.5 : log", "drag": 0.2})
    assert settings.to_dict()["reynolds"] == "200..2000.5:log"
    assert Settings.parse(pde, settings.to_dict()) == settings


@pytest.mark.parametrize(
    ("name", "setting", "message"),
    [
        (NAME, "parameters.reynolds=200..100", "the first number of a range is the smaller one"),
        (NAME, "parameters.reynolds=200..2000:lin", "a range is LOW..HIGH or LOW..HIGH:log"),
        (NAME, "parameters.reynolds=200..", "a range is LOW..HIGH or LOW..HIGH:log"),
        (NAME, "parameters.drag=0..1:log", "needs numbers above 0"),
        (NAME, "parameters.drag=-1..1", "drag.*greater than or equal to 0"),
        (NAME, "parameters.forcing_wavenumber=4..8.5", "whole number"),
        (NAME, "parameters.dt=0.1..0.2", "dt takes one value for all trajectories; one for each may be reynolds"),
        (NAME, "parameters.reynold=5..6", "did you mean 'reynolds'"),
        (NAME, "parameters=5", "parameters are names with values"),
        ("burgers", "extent=5..6", "extent would decide the grid"),
    ],
)
def test_a_range_that_cannot_be_is_named(name: str, setting: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message) as caught:
        generate(name, tmp_path / "data", preset="tiny", settings=[setting])
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "data").exists()


def test_of_several_ranges_those_that_decide_the_grid_are_named(tmp_path: Path) -> None:
    settings = ["viscosity=0.01..0.1:log", "extent=1..2"]
    with pytest.raises(UserError, match="burgers: extent would decide the grid"):
        generate("burgers", tmp_path / "data", preset="tiny", settings=settings)


def test_another_range_beside_what_is_there_is_refused(flows: Path) -> None:
    with pytest.raises(UserError, match=r"made with reynolds=100\.\.1000:log, asked for 100\.\.900:log"):
        generate(NAME, flows, preset="tiny", splits=["valid"], settings=["reynolds=100..900:log", BOTH[1]])
