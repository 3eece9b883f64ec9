"""Problems, files, statistics, checkpoints and bundles that the first edition wrote are still read."""

import json
from pathlib import Path

import h5py
import pytest
import torch

from factformer import Field, Grid, Problem, build_surrogate, load
from factformer.bundle import save_bundle
from factformer.data import ArrayDataset, generate, open_dataset
from factformer.data.describe import describe_problem
from factformer.data.layout import CHECKSUMS, DIGEST
from factformer.data.normalization import Normalizer, migrate_state

GRID = Grid((6, 5), 1.0, False)
FLOW = Problem("flow", GRID, (Field("u", 2),), frame_dt=0.5, num_context_frames=3, horizon=4, boundary="zero")
MAP = Problem("map", GRID, (Field("y"),), (Field("x", 2),), num_context_frames=0, boundary="zero")
SIZES = {"dim": 8, "depth": 1, "heads": 2, "head_dim": 4, "kernel_dim": 4}
ZOO = Path(__file__).parents[1] / "zoo"


def old_description(problem: Problem) -> dict:
    """As the first edition described a problem."""
    fields = {group: [[f.name, f.num_channels] for f in getattr(problem, group)] for group in ("state", "static")}
    return {
        "name": problem.name,
        "grid": problem.grid.to_dict(),
        "outputs": fields["state"],
        "inputs": fields["static"] or fields["state"],
        "frame_dt": problem.frame_dt,
        "num_context_frames": problem.num_context_frames or 1,
        "horizon": problem.horizon,
        "boundary": problem.boundary,
        "steady": problem.num_context_frames == 0,
    }


def old_names(problem: Problem) -> dict[str, str]:
    seen = "context" if problem.num_context_frames else "static"
    return {
        f"{seen}_mean": "input_mean",
        f"{seen}_std": "input_std",
        "state_mean": "output_mean",
        "state_std": "output_std",
        "increment_std": "increment_std",
    }


def trained(problem: Problem):
    torch.manual_seed(0)
    frames = torch.randn(3, 8 if problem.num_context_frames else 1, *GRID.shape, problem.num_state_channels) + 2
    static = torch.randn(3, *GRID.shape, 2) - 1 if problem.static else None
    data = ArrayDataset(frames, problem, static=static)
    return data, build_surrogate(problem, marching_steps=1, normalizer=data.normalizer(), **SIZES)


@pytest.mark.parametrize("problem", [FLOW, MAP], ids=lambda problem: problem.name)
def test_descriptions(problem):
    assert Problem.from_dict(old_description(problem)) == problem
    assert problem.identity() == old_description(problem)  # so fingerprints stay


def test_a_problem_with_new_parts_is_its_own_description():
    new = Problem("flow", GRID, (Field("u"),), static=(Field("depth"),), boundary="zero")
    assert new.identity() == new.to_dict()


def test_problem_files():
    old = {"name": "map", "num_axes": 2, "outputs": {"y": 1}, "inputs": {"x": 2}, "steady": True, "boundary": "zero"}
    assert describe_problem(old).problem(GRID.shape, 1) == MAP
    flow = describe_problem({"name": "flow", "num_axes": 2, "outputs": {"u": 2}, "steady": False})
    assert flow.problem(GRID.shape, 9).state == FLOW.state


@pytest.mark.parametrize("problem", [FLOW, MAP], ids=lambda problem: problem.name)
def test_statistics_and_weights(problem):
    data, surrogate = trained(problem)
    names = old_names(problem)
    old = {names[name]: values for name, values in data.normalizer().to_dict().items()}
    assert Normalizer.from_dict(old, problem).to_dict() == data.normalizer().to_dict()
    state = {
        f"normalizer.{names[key.removeprefix('normalizer.')]}" if key.startswith("normalizer.") else key: value
        for key, value in surrogate.state_dict().items()
    }
    fresh = build_surrogate(problem, marching_steps=1, **SIZES)
    fresh.load_state_dict(state)
    assert fresh.normalizer.to_dict() == data.normalizer().to_dict()
    migrate_state(state, fresh.normalizer, "normalizer.")  # as a checkpoint is read
    assert state.keys() == fresh.state_dict().keys()


@pytest.mark.parametrize("problem", [FLOW, MAP], ids=lambda problem: problem.name)
def test_bundles(problem, tmp_path):
    from safetensors.torch import load_file, save_file

    from factformer._support.files import file_checksum

    data, surrogate = trained(problem)
    path, names = save_bundle(surrogate, tmp_path / "bundle"), old_names(problem)
    state = load_file(path / "model.safetensors")
    for new, old in names.items():
        state[f"normalizer.{old}"] = state.pop(f"normalizer.{new}")
    save_file(state, path / "model.safetensors")
    values = json.loads((path / "bundle.json").read_text())
    values["problem"] = old_description(problem)
    values["normalization"] = {names[name]: numbers for name, numbers in values["normalization"].items()}
    values.pop("description_sha256")  # version 1 had none
    values |= {"version": 1, "sha256": file_checksum(path / "model.safetensors")}
    (path / "bundle.json").write_text(json.dumps(values))
    batch = data.batch([0, 1])
    with torch.no_grad():
        assert torch.equal(load(path)(batch), surrogate.eval()(batch))


@pytest.mark.parametrize("name", [path.name for path in sorted(ZOO.glob("*-*"))])
def test_the_zoo(name):
    surrogate = load(ZOO / name)
    assert surrogate.problem.steady == name.startswith("darcy")
    surrogate.normalizer.require(surrogate.problem)


@pytest.mark.parametrize("pde", ["kolmogorov_flow", "darcy_flow"])
def test_files(pde, tmp_path):
    """A file of ours with the names and the format number of the first edition."""
    (path,) = generate(pde, tmp_path, preset="tiny", splits=["train"], trajectories=2)
    new = open_dataset(tmp_path)
    expected = new.normalizer().to_dict(), new.problem, new.fingerprint, new.window([1])
    new.files[0].close()
    with h5py.File(path, "r+") as file:
        file.attrs["format"] = 1
        for later in (CHECKSUMS, DIGEST):
            del file[later]
        description = old_description(new.problem)
        description["grid"]["coordinates"] = [False] * new.problem.grid.num_axes
        file.attrs["problem"] = json.dumps(description)
        statistics = file["statistics"]
        for moment in ("mean", "std"):
            statistics.move(f"state_{moment}", f"output_{moment}")
            if new.problem.static:
                statistics.move(f"static_{moment}", f"input_{moment}")
            else:
                statistics[f"input_{moment}"] = statistics[f"output_{moment}"][:]
    old = open_dataset(tmp_path)
    assert (old.normalizer().to_dict(), old.problem, old.fingerprint) == expected[:3]
    for ours, theirs in zip(old.window([1]).known, expected[3].known, strict=True):
        assert ours is theirs is None or torch.equal(ours, theirs)
    assert generate(pde, tmp_path, preset="tiny", splits=["train"], trajectories=2) == [path]  # it is there already
