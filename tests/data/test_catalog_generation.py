"""Every problem of the catalog can be generated, and a trajectory is the same in any batch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from factformer import catalog
from factformer.data import generate, open_dataset
from factformer.data.generate.plan import stored_problem
from factformer.errors import UserError
from factformer.pdes import Settings


@pytest.mark.parametrize("name", catalog.names("pdes"))
def test_every_problem_is_stored_and_found_again(name: str, tmp_path: Path) -> None:
    pde = catalog.find("pdes", name).pde
    plan = pde.presets["tiny"]
    generate(name, tmp_path, preset="tiny", trajectories=2)
    for split in plan.num_trajectories:
        data = open_dataset(tmp_path, split)
        assert data.problem == stored_problem(pde, plan, Settings.parse(pde, plan.parameters))
        frames = data.read(slice(None))
        assert frames.shape[:2] == (2, plan.num_frames)
        assert frames.std() > 0
        assert not torch.equal(frames[0], frames[1])
        normalizer = data.normalizer()
        assert all(
            torch.isfinite(values).all() and (values > 0).all()
            for name, values in normalizer.named_buffers()
            if name.endswith("std")
        )
    train, test = open_dataset(tmp_path, "train"), open_dataset(tmp_path, "test")
    assert not torch.equal(train.read([0]), test.read([0]))


@pytest.mark.parametrize(
    ("name", "preset", "resolution", "simulated"),
    [
        ("darcy_flow", "tiny", 15, 43),  # every third of 43 nodes
        ("darcy_flow", "tiny", 10, 46),  # 10 nodes are none of 43, but of 46
        ("darcy_flow", "tiny", 61, 61),
        ("kolmogorov_flow", "tiny", 20, 48),
        ("kolmogorov_flow", "tiny", 50, 50),
        ("isotropic_turbulence", "tiny", 8, 12),
        ("smoke_buoyancy", "tiny", 8, 8),  # always on the solver's grid
    ],
)
def test_the_solver_grid_holds_the_stored_one(
    name: str, preset: str, resolution: int, simulated: int, tmp_path: Path
) -> None:
    generate(name, tmp_path, preset=preset, splits=["test"], trajectories=1, resolution=resolution)
    data = open_dataset(tmp_path, "test")
    assert set(data.problem.grid.shape) == {resolution}
    assert data.provenance["simulation_resolution"] == simulated


def test_grids_that_do_not_fit_are_refused_before_solving(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="43 points cannot be stored as 10"):
        generate("darcy_flow", tmp_path, preset="tiny", resolution=10, simulation_resolution=43)
    with pytest.raises(UserError, match=r"16 points cannot be stored as 8: .* solver's grid"):
        generate("smoke_buoyancy", tmp_path, preset="tiny", resolution=8, simulation_resolution=16)
    assert not list(tmp_path.iterdir())


@pytest.mark.gpu
@pytest.mark.parametrize("name", catalog.names("pdes"))
def test_the_gpu_starts_from_the_same_states(name: str, tmp_path: Path) -> None:
    for device in ("cpu", "cuda"):
        generate(name, tmp_path / device, preset="tiny", splits=["test"], device=device, dtype="float64")
    cpu, gpu = (open_dataset(tmp_path / device, "test").read([0], slice(0, 2)) for device in ("cpu", "cuda"))
    assert (cpu - gpu).norm() < 1e-4 * cpu.norm()


@pytest.mark.parametrize("name", catalog.names("pdes"))
def test_a_trajectory_has_the_same_bits_in_any_batch(name: str, tmp_path: Path) -> None:
    contents = set()
    for batch_size in (1, 2, 3):
        out = tmp_path / str(batch_size)
        generate(name, out, preset="tiny", splits=["train"], trajectories=3, batch_size=batch_size)
        contents.add((out / "train.hdf5").read_bytes())
    assert len(contents) == 1


@pytest.mark.parametrize(
    ("name", "setting", "message"),
    [
        ("kolmogorov_flow", "downsampling=nonsense", "nonsense"),
        ("isotropic_turbulence", "downsampling=points", "truncate"),
        ("smoke_buoyancy", "downsampling=points", "stored on the solver's grid"),
        ("darcy_flow", "downsampling=truncate", "points"),
        ("darcy_flow", "warmup=3", "is steady: warmup"),
        ("darcy_flow", "num_frames=2", "is steady: num_frames"),
        ("darcy_flow", "points=cells", "factformer.simulate alone"),
    ],
)
def test_a_setting_without_effect_is_refused(name: str, setting: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        generate(name, tmp_path / "data", preset="tiny", trajectories=1, settings=[setting])
    assert not (tmp_path / "data").exists()
