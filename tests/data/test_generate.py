from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from fake_pdes import Decay

from factformer.data import generate, open_dataset, trajectory_seed
from factformer.errors import UserError


def test_values_problem_and_counts_are_those_of_the_solver(decay, tmp_path: Path) -> None:
    paths = generate(decay, tmp_path, seed=5)
    assert [path.name for path in paths] == ["train.hdf5", "valid.hdf5", "test.hdf5"]
    data = open_dataset(tmp_path, "valid")
    assert (data.num_trajectories, data.num_frames, data.split) == (2, 5, "valid")
    assert data.problem == decay.problem(6)
    generator = torch.Generator().manual_seed(trajectory_seed(5, "valid", 1))
    start = decay.sample_initial(decay.problem(12).grid, [generator], dtype=torch.float32, device="cpu")
    solved = torch.stack(list(decay.frames(start, 7, 0.25, decay.parameters())), dim=1)
    expected = decay.downsample(solved, (6, 6))[:, 2:]  # the warm-up of 0.5 is two frames
    assert torch.equal(data.read([1]), expected)
    assert data.read([1]).std() > 0.1


def test_parameters_resolution_and_trajectories_override_the_preset(decay, tmp_path: Path) -> None:
    generate(decay, tmp_path / "a", splits=["test"], trajectories=2, parameters={"rate": 0.0}, resolution=4)
    data = open_dataset(tmp_path / "a", "test")
    frames = data.read(slice(None))
    assert frames.shape == (2, 5, 4, 4, 3)
    assert torch.equal(frames[:, 0], frames[:, -1])
    assert data.provenance["parameters"] == {"rate": 0.0}
    assert data.provenance["simulation_resolution"] == 12


def test_seeds_of_splits_are_disjoint_and_kept_in_the_file(decay, tmp_path: Path) -> None:
    seeds = [trajectory_seed(0, split, index) for split in ("train", "valid", "test") for index in range(200)]
    assert len(set(seeds)) == len(seeds)
    generate(decay, tmp_path, splits=["test"])
    with h5py.File(tmp_path / "test.hdf5") as file:
        assert file["seeds"][:].tolist() == [trajectory_seed(0, "test", index) for index in range(3)]


def test_bytes_do_not_depend_on_the_batch_size(decay, tmp_path: Path) -> None:
    contents = []
    for batch_size in (1, 3, 7):
        generate(decay, tmp_path / str(batch_size), splits=["train"], batch_size=batch_size)
        contents.append((tmp_path / str(batch_size) / "train.hdf5").read_bytes())
    assert contents[0] == contents[1] == contents[2]


def test_more_trajectories_start_with_the_same_ones(decay, tmp_path: Path) -> None:
    generate(decay, tmp_path / "few", splits=["train"], trajectories=3)
    generate(decay, tmp_path / "many", splits=["train"], trajectories=5)
    assert torch.equal(
        open_dataset(tmp_path / "few").read(slice(None)), open_dataset(tmp_path / "many").read([0, 1, 2])
    )


def test_statistics_are_those_of_the_training_split(decay, tmp_path: Path) -> None:
    generate(decay, tmp_path, preset="small")
    values = open_dataset(tmp_path, "train").read(slice(None)).double()
    increments = values.diff(dim=1)
    normalizer = open_dataset(tmp_path, "test").normalizer()
    velocity = values[..., :2]
    shared = float((velocity - velocity.mean(dim=(0, 1, 2, 3))).square().mean().sqrt())
    change = increments[..., :2]
    shared_increment = float((change - change.mean(dim=(0, 1, 2, 3))).square().mean().sqrt())
    assert normalizer.state_mean.double() == pytest.approx(values.mean(dim=(0, 1, 2, 3)), rel=1e-6)
    assert normalizer.state_std[:2].tolist() == pytest.approx([shared, shared], rel=1e-6)
    assert float(normalizer.state_std[2]) == pytest.approx(float(values[..., 2].std(correction=0)), rel=1e-6)
    assert normalizer.increment_std[:2].tolist() == pytest.approx([shared_increment] * 2, rel=1e-6)
    assert torch.equal(normalizer.context_mean, normalizer.state_mean)


def test_a_solver_may_work_in_place(decay, tmp_path: Path) -> None:
    class InPlace(Decay):
        def frames(self, initial, num_frames, frame_dt, parameters):
            state = initial.clone()
            for frame in super().frames(initial, num_frames, frame_dt, parameters):
                state.copy_(frame)
                yield state
                state.fill_(123.0)

    generate(decay, tmp_path / "new", splits=["train"])
    generate(InPlace(), tmp_path / "same", splits=["train"])
    assert (tmp_path / "new" / "train.hdf5").read_bytes() == (tmp_path / "same" / "train.hdf5").read_bytes()


MEASURE = """
import resource, sys
from dataclasses import replace
from fake_pdes import Decay
from factformer.data import generate
plan = replace(Decay.presets["tiny"], resolution=96, simulation_resolution=96, num_frames=100)
generate(Decay(), sys.argv[1], preset=plan, splits=["train"], trajectories=int(sys.argv[2]))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_dataset(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "OMP_NUM_THREADS": "1"}
    peaks = []
    for count in (2, 60):  # 22 MB and 663 MB
        command = [sys.executable, "-c", MEASURE, str(tmp_path / str(count)), str(count)]
        peaks.append(int(subprocess.run(command, env=environment, capture_output=True, check=True).stdout))
    assert peaks[1] < peaks[0] + 60


def test_steady_problem_keeps_inputs_and_outputs(doubling, tmp_path: Path) -> None:
    generate(doubling, tmp_path, parameters={"rate": 2.0})
    data = open_dataset(tmp_path, "train")
    static = data.read([3, 0], part="static")
    assert static.shape == (2, 6, 6, 1)
    assert torch.equal(data.read([3, 0])[:, 0], 2 * static)
    assert data.problem == doubling.problem(6)
    normalizer = data.normalizer()
    assert float(normalizer.state_std[0]) == pytest.approx(2 * float(normalizer.static_std[0]), rel=1e-5)
    assert torch.equal(normalizer.increment_std, normalizer.state_std)


def test_double_precision_solves_differently_but_stores_single(decay, tmp_path: Path) -> None:
    generate(decay, tmp_path / "single", splits=["test"])
    generate(decay, tmp_path / "double", splits=["test"], dtype="float64")
    single = open_dataset(tmp_path / "single", "test").read([0])
    double = open_dataset(tmp_path / "double", "test").read([0])
    assert double.dtype == torch.float32
    assert np.allclose(single, double, rtol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"preset": "smal"}, "did you mean 'small'"),
        ({"splits": ["training"]}, "did you mean 'train'"),
        ({"trajectories": 0}, "at least 1 trajectory"),
        ({"resolution": 1}, "at least 2"),
        ({"resolution": 8, "simulation_resolution": 4}, "finer than the simulation"),
        ({"batch_size": 0}, "batch_size"),
        ({"dtype": "float16"}, "unknown dtype"),
        ({"device": "cuda:99x"}, "unknown device"),
        ({"parameters": {"rat": 1.0}}, "did you mean 'rate'"),
    ],
)
def test_wrong_arguments_are_named_and_nothing_is_written(decay, tmp_path: Path, arguments, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        generate(decay, tmp_path / "out", **arguments)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_unknown_problem_lists_the_choices(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="kolmogorov_flow"):
        generate("kolmogorov", tmp_path)
