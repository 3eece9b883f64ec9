"""An equation that is given static fields, forcing and a mask: all of it is drawn, stored and read back."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fake_pdes import Driven

from factformer import catalog, simulate
from factformer.batch import Batch
from factformer.data import generate, open_dataset, trajectory_seed
from factformer.data.generate.simulated import simulate_splits
from factformer.errors import UserError
from factformer.evaluation.run import open_held_out
from factformer.prediction import read_context

PARTS = ("static", "forcing", "parameters", "mask")


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("driven")
    with catalog.using(pdes=[Driven()]):
        generate("driven", folder, settings=["parameters.rate=0.5..1"])
    return folder


def test_every_part_is_stored_beside_the_frames(stored: Path) -> None:
    data = open_dataset(stored, "test")
    assert data.problem.parts == PARTS
    known = data.known(slice(None))
    assert known.static.shape == (2, 6, 6, 1) and known.forcing.shape == (2, 4, 6, 6, 1)
    assert known.mask.dtype == torch.bool and 0 < known.mask.float().mean() < 1
    frames = data.read(slice(None))
    assert (frames[~known.mask[:, None].expand(frames.shape[:-1])] == 0).all() and frames.abs().max() > 0


def test_simulate_takes_the_same_parts(stored: Path) -> None:
    """From the draws of a trajectory's seed and its stored rate `simulate` gives its stored frames."""
    pde, data = Driven(), open_dataset(stored, "test")
    generator = torch.Generator().manual_seed(trajectory_seed(0, "test", 1))
    known = pde.sample_known(pde.grid((12, 12)), [generator], 6, 0.25, dtype=torch.float32, device="cpu")
    rate = data.read([1], part="parameters")[0]
    assert 0.5 <= float(rate) <= 1
    parts = {name: getattr(known, name) for name in pde.conditions}
    frames = simulate(pde, torch.zeros(1, 12, 12, 1), 6, 0.25, rate=rate, **parts)
    assert torch.equal(data.read([1]), frames[:, 2:, ::2, ::2])
    inside = known.mask[:, None, ::2, ::2, None]  # what lies outside the domain is read as zero
    assert torch.equal(data.read([1], part="forcing"), known.forcing[:, 2:, ::2, ::2] * inside)
    with pytest.raises(UserError, match="driven needs a mask of the points inside its domain; give mask="):
        simulate(pde, torch.zeros(1, 12, 12, 1), 6, 0.25, static=known.static, forcing=known.forcing)
    with pytest.raises(UserError, match="forcing must cover 1 context and 6 predicted frames"):
        simulate(pde, torch.zeros(1, 12, 12, 1), 7, 0.25, **parts)


def test_memory_holds_the_same(stored: Path) -> None:
    preset = Driven.presets["small"]
    preset = type(preset)(**{**vars(preset), "parameters": {"rate": "0.5..1"}})
    found = simulate_splits(Driven(), preset, {"train": 3, "test": 2})[6]
    for split in ("train", "test"):
        data = open_dataset(stored, split)
        assert found[split].fingerprint == data.fingerprint
        for part in ("state", *PARTS):
            assert torch.equal(found[split].read([1], part=part), data.read([1], part=part)), part


def test_a_part_that_is_not_given_is_named(tmp_path: Path) -> None:
    class Forgetful(Driven):
        def sample_known(self, *arguments: object, **like: object) -> Batch:
            return Batch()

    with pytest.raises(UserError, match="its sample_known must give static, forcing, mask; it gives nothing"):
        generate(Forgetful(), tmp_path / "data")
    assert not (tmp_path / "data" / "train.hdf5").exists()


def test_a_number_that_all_trajectories_share_serves_a_surrogate_that_knows_it(tmp_path: Path) -> None:
    """A surrogate over a range of rates is scored, and goes on, on data of one rate."""
    with catalog.using(pdes=[Driven()]):
        generate("driven", tmp_path / "range", settings=["parameters.rate=0.5..1"])
        generate("driven", tmp_path / "one", settings=["parameters.rate=0.75"])
    problem = open_dataset(tmp_path / "range").problem
    assert problem.parameters == ("rate",) and open_dataset(tmp_path / "one").problem.parameters == ()
    held_out = open_held_out(tmp_path / "one", problem)
    assert held_out.problem.parameters == ("rate",)
    assert held_out.read(slice(None), part="parameters").tolist() == [[0.75]] * held_out.num_trajectories
    context = read_context(tmp_path / "one" / "test.hdf5", problem)
    assert context.batch.parameters.unique().tolist() == [0.75]
