"""The undamaged things that are attacked: arrays, datasets, a run and what the commands make of them."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import scipy.io
from arena import Arena

PROBLEM = """name: waves
num_axes: 2
outputs: {u: 1}
extent: 2.0
periodic: true
frame_dt: 0.2
num_context_frames: 3
horizon: 4
"""
CONFIG = """problem: waves
model: {name: factformer, dim: 8, depth: 1, heads: 2, head_dim: 4, kernel_dim: 4}
protocol: {name: latent_marching, marching_steps: 2}
training:
  {updates: 4, batch_size: 2, learning_rate: 0.003, checkpoint_every: 2, log_every: 2, validate_every: 4,
   validation_windows: 2}
"""
ARRAYS = ("frames.npy", "frames.npz", "frames.mat", "matlab.mat", "frames.h5", "bench.h5")
CONVERT = "--problem waves.yaml --layout ntxy --out converted/test.hdf5"
EVALUATE = "--starts 1 --samples 1 --no-figures --json"
PREDICT = "--frames 2 --out p.npy"


@dataclass(frozen=True)
class Kit:
    """A folder of undamaged files, and what they say."""

    folder: Path
    values: np.ndarray[Any, Any]
    """The frames that every array file holds."""
    problem: dict[str, Any]
    """What our data say of themselves."""
    prediction: bytes
    """The file that ``rollout`` writes."""
    scores: dict[str, Any]
    """The errors that ``evaluate`` prints."""
    weights: bytes
    """The weights that training ends with."""

    def tell(self, arena: Arena) -> None:
        """Let the children of an arena take the undamaged HDF5 files for readable."""
        arena.know(self.folder)
        arena.know(self.folder / "data")

    def copy(self, target: Path, *names: str) -> None:
        """Bring some of the files into ``target``, such as ``run`` or ``data/test.hdf5``; everything else is linked."""
        folders = {name.partition("/")[0] for name in names if "/" in name}
        for folder in folders:
            (target / folder).mkdir()
        for item in [*self.folder.iterdir(), *(path for name in folders for path in (self.folder / name).iterdir())]:
            name = str(item.relative_to(self.folder))
            if name in folders:
                continue
            if name not in names:
                (target / name).symlink_to(item)
            elif item.is_dir():
                shutil.copytree(item, target / name)
            else:
                shutil.copy(item, target / name)


def make_kit(folder: Path, arena: Arena) -> Kit:
    """Everything through the command line, as a user makes it."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    splits = {name: rng.normal(size=(count, 12, 8, 8)).astype("f4") for name, count in (("train", 3), ("valid", 1))}
    values = splits["test"] = rng.normal(size=(2, 12, 8, 8)).astype("f4")
    (folder / "waves.yaml").write_text(PROBLEM, encoding="utf-8")
    (folder / "config.yaml").write_text(CONFIG, encoding="utf-8")
    for name, array in splits.items():
        np.save(folder / f"{name}.npy", array)
        _expect_done(arena, folder, f"convert {name}.npy --problem waves.yaml --out data/{name}.hdf5")
        (folder / f"{name}.npy").unlink()
    _write_arrays(folder, values)
    _expect_done(arena, folder, "train config.yaml --data data --out run --quiet")
    shutil.copytree(folder / "run", folder / "half")
    shutil.copytree(folder / "run" / "bundle", folder / "bundle")
    for path in (folder / "half" / "bundle", folder / "half" / "checkpoints" / "update-00000004"):
        shutil.rmtree(path)
    scores = json.loads(_expect_done(arena, folder, f"evaluate run {EVALUATE}"))["fields"]
    _expect_done(arena, folder, f"rollout bundle --input frames.npy {PREDICT}")
    weights = (folder / "bundle" / "model.safetensors").read_bytes()
    prediction = (folder / "p.npy").read_bytes()
    (folder / "p.npy").unlink()
    with h5py.File(folder / "data" / "test.hdf5") as file:
        problem = json.loads(file.attrs["problem"])
    return Kit(folder, values, problem, prediction, scores, weights)


def _write_arrays(folder: Path, values: np.ndarray[Any, Any]) -> None:
    np.save(folder / "frames.npy", values)
    np.savez_compressed(folder / "frames.npz", u=values)
    scipy.io.savemat(folder / "frames.mat", {"u": values}, do_compression=True)
    with h5py.File(folder / "frames.h5", "w") as file:
        file["u"] = values
    with h5py.File(folder / "matlab.mat", "w") as file:
        file["u"] = values.T
        file["u"].attrs["MATLAB_class"] = np.bytes_("single")
    with h5py.File(folder / "bench.h5", "w") as file:
        file["tensor"] = values
        file["t-coordinate"] = np.arange(12) * 0.2
        for name in ("x", "y"):
            file[f"{name}-coordinate"] = np.arange(8) / 4


def _expect_done(arena: Arena, folder: Path, command: str) -> str:
    outcome = arena.run(command.split(), folder)
    assert outcome.code == 0, (command, outcome)
    return outcome.out
