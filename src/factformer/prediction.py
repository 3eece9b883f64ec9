"""Predictions from files: read context frames, roll a bundle out, write the predicted frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from factformer.bundle import load
from factformer.data.arrays import describe_arrays, open_arrays
from factformer.data.convert import is_well
from factformer.data.files import explained
from factformer.data.generate import require_device
from factformer.data.progress import ProgressBar
from factformer.data.store import open_dataset
from factformer.errors import UserError
from factformer.problem import Problem
from factformer.report.animation import write_animation
from factformer.report.planes import components
from factformer.rollout import rollout

STORED = (".hdf5", ".h5")
BATCH = 16
"""Samples that are rolled out at once."""


@dataclass(frozen=True)
class Prediction:
    """What `predict_file` wrote: where, and the shape ``(batch, frame, *grid, channel)`` of what."""

    out: Path
    shape: tuple[int, ...]
    fields: tuple[str, ...]


def predict_file(
    bundle: str | Path,
    source: Path,
    num_frames: int,
    out: Path,
    *,
    animation: Path | None = None,
    device: str = "cpu",
    overwrite: bool = False,
    progress: bool = False,
) -> Prediction:
    """Roll out from the context frames in ``source`` and write the predicted frames to ``out``."""
    if out.suffix not in (".npy", ".npz"):
        raise UserError(f"predictions are written as .npy or .npz, got {out.name!r}")
    if animation is not None and animation.suffix.lower() != ".gif":
        raise UserError(f"animations are written as GIF; give {animation.name!r} the ending .gif")
    for path in [out] + [animation] * (animation is not None):
        if path is not None and path.exists() and not overwrite:
            raise UserError(f"{path} exists; add --overwrite to replace it or choose another name")
    require_device(device)
    surrogate = load(bundle).to(device)
    problem = surrogate.problem
    context = read_context(source, problem)
    batches = context.split(BATCH)
    predicted = []
    with (
        torch.inference_mode(),
        ProgressBar("rolling out", num_frames * len(batches), enabled=progress) as bar,
    ):
        for batch in batches:
            rolled = []
            for frame in rollout(surrogate, batch.to(device), num_frames):
                rolled.append(frame.cpu())
                bar.advance()
            predicted.append(torch.stack(rolled, dim=1))
    frames = torch.cat(predicted).numpy()
    if not np.isfinite(frames).all():
        raise UserError(f"the roll-out of {source} left the finite numbers; predict fewer than {num_frames} frames")
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = out.with_name(f".{out.stem}.partial{out.suffix}")
    try:
        with explained(out):
            if out.suffix == ".npy":
                np.save(temporary, frames)
            else:
                np.savez_compressed(temporary, frames=frames, frame_dt=problem.frame_dt)
            temporary.replace(out)
    finally:
        temporary.unlink(missing_ok=True)
    if animation is not None:
        write_animation(
            animation, frames[0], component=components(problem.outputs)[0], grid=problem.grid,
            frame_dt=problem.frame_dt, overwrite=overwrite,
        )  # fmt: skip
    return Prediction(out, frames.shape, tuple(f.name for f in problem.outputs))


def _with_channels(parts: Sequence[NDArray[Any]], problem: Problem) -> list[NDArray[Any]]:
    """Arrays of fields side by side; a scalar may come without an axis of channels."""
    num_axes, longest = problem.grid.num_axes, max(part.ndim for part in parts)
    return [
        part[..., None] if field.num_channels == 1 and (part.shape[-num_axes:] == problem.grid.shape
                                                        or part.ndim < longest) else part
        for part, field in zip(parts, problem.inputs, strict=True)
    ]  # fmt: skip


def read_context(path: Path, problem: Problem) -> Float[Tensor, "batch context *grid channel"]:
    """Context frames from a file: a dataset of ours, or arrays ``([batch,] frame, *grid, channel)``.

    Of a longer sequence the last frames are taken; of a dataset, the first ones of every trajectory. The
    samples of a steady problem need no axis of frames.
    """
    if path.suffix in STORED and is_well(path):
        found = open_dataset(path).problem
        if (found.steady, found.inputs) != (problem.steady, problem.inputs):
            wanted, there = (", ".join(f.name for f in item.inputs) for item in (problem, found))
            raise UserError(f"{path} is of {found.name!r} with {there}; a surrogate of {problem.name!r} needs {wanted}")
        dataset = open_dataset(path, num_context_frames=problem.num_context_frames, horizon=problem.horizon)
        return dataset.read_inputs(slice(None))
    arrays = open_arrays(path)
    names = [f.name for f in problem.inputs]
    if len(arrays) == 1:
        values = np.asarray(next(iter(arrays.values()))[...])
    elif set(names) <= set(arrays):
        parts = [np.asarray(arrays[f.name][...]) for f in problem.inputs]
        try:
            values = np.concatenate(_with_channels(parts, problem), axis=-1)
        except ValueError:
            raise UserError(f"the arrays of {path} do not fit together: it holds {describe_arrays(arrays)}") from None
    else:
        wanted = ", ".join(names)
        raise UserError(f"{path} needs one array, or arrays named {wanted}; it holds {describe_arrays(arrays)}")
    frames = torch.from_numpy(values.astype(np.float32))
    if frames.ndim == problem.grid.num_axes + 2:
        frames = frames.unsqueeze(1 if problem.steady else 0)
    if problem.steady:
        return frames
    if frames.ndim == problem.grid.num_axes + 3 and frames.shape[1] > problem.num_context_frames:
        frames = frames[:, -problem.num_context_frames :]
    return frames
