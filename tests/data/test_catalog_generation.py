"""Every problem of the catalog can be generated, and a trajectory is the same in any batch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from factformer import catalog
from factformer.data import generate, open_dataset
from factformer.data.generate import stored_problem


@pytest.mark.parametrize("name", catalog.names("pdes"))
def test_every_problem_is_stored_and_found_again(name: str, tmp_path: Path) -> None:
    pde = catalog.find("pdes", name).pde
    plan = pde.presets["tiny"]
    generate(name, tmp_path, preset="tiny", trajectories=2)
    for split in plan.num_trajectories:
        data = open_dataset(tmp_path, split)
        assert data.problem == stored_problem(pde, plan)
        frames = data.read(slice(None))
        assert frames.shape[:2] == (2, plan.num_frames)
        assert frames.std() > 0
        assert not torch.equal(frames[0], frames[1])
        normalizer = data.normalizer()
        assert all(
            torch.isfinite(values).all() and (values > 0).all()
            for values in (normalizer.input_std, normalizer.output_std, normalizer.increment_std)
        )
    train, test = open_dataset(tmp_path, "train"), open_dataset(tmp_path, "test")
    assert not torch.equal(train.read([0]), test.read([0]))


@pytest.mark.parametrize("name", catalog.names("pdes"))
def test_a_trajectory_has_the_same_bits_in_any_batch(name: str, tmp_path: Path) -> None:
    contents = set()
    for batch_size in (1, 2, 3):
        out = tmp_path / str(batch_size)
        generate(name, out, preset="tiny", splits=["train"], trajectories=3, batch_size=batch_size)
        contents.add((out / "train.hdf5").read_bytes())
    assert len(contents) == 1
