"""Predictions from files: read context frames, roll a bundle out, write the predicted frames."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from factformer._support.files import clean_leftovers, require_free, write_together
from factformer._support.limits import require_memory
from factformer.bundle import load
from factformer.data.formats.foreign import NO_PARTS
from factformer.data.formats.parts import Parts
from factformer.data.generate.progress import ProgressBar
from factformer.errors import UserError
from factformer.evaluation.accuracy import other_parameters
from factformer.evaluation.memory import memory_explained
from factformer.evaluation.run import check_writable
from factformer.evaluation.timing import autocast, resolve_device
from factformer.prediction.context import read_context
from factformer.report.animation import write_animation
from factformer.report.planes import components
from factformer.rollout import rollout
from factformer.training.cut_predictions import Sharing

BATCH = 16
"""Samples that are rolled out at once."""
COPIES = 2
"""Of the predicted frames in memory: as they come, and put together."""


@dataclass(frozen=True)
class Prediction:
    """What `predict_file` wrote: where, the shape ``(batch, frame, *grid, channel)`` of what, and after which frames.

    A steady problem has nothing that its answer comes ``after``; ``other_grid`` and ``other_parameters`` are empty
    where they are those of the training data, or not known. ``frame_dt`` is how far apart the frames of the first
    sample are.
    """

    out: Path
    shape: tuple[int, ...]
    fields: tuple[str, ...]
    after: str = ""
    frame_dt: float | None = None
    other_grid: str = ""
    other_parameters: str = ""


def predict_file(
    bundle: str | Path,
    source: Path,
    num_frames: int,
    out: Path,
    *,
    start: int | None = None,
    fields: Mapping[str, str] | None = None,
    layout: str | None = None,
    parts: Parts = NO_PARTS,
    parameters: Mapping[str, Any] | None = None,
    animation: Path | None = None,
    device: str | None = None,
    precision: str = "32-true",
    sharing: Sharing = Sharing(),  # noqa: B008 - immutable
    overwrite: bool = False,
    progress: bool = False,
) -> Prediction:
    """Roll out from the context frames in ``source`` and write the predicted frames to ``out``.

    What the frames and other arguments are, `read_context` says. ``sharing`` says over how many processes the grid is
    cut.
    """
    if sharing.over_processes:
        sharing.join(load(bundle))
    if out.suffix not in (".npy", ".npz"):
        raise UserError(f"predictions are written as .npy or .npz, got {out.name!r}")
    if animation is not None and animation.suffix.lower() != ".gif":
        raise UserError(f"animations are written as GIF; give {animation.name!r} the ending .gif")
    files = [out] if animation is None else [out, animation]
    require_free(files, overwrite=overwrite)
    for path in files:
        check_writable(path.parent)
        clean_leftovers(path.parent)
    target = resolve_device(device)
    region = autocast(target, precision)
    surrogate = load(bundle).to(target)
    problem = surrogate.problem
    context = read_context(
        source, problem, num_frames, start=start, fields=fields, layout=layout, parts=parts, parameters=parameters
    )
    home = target if sharing.domain == 1 else torch.device("cpu")  # where whole frames are
    try:
        grid = surrogate.check(context.batch, 1, None)
    except UserError as error:
        raise UserError(f"{source}: {error}") from None
    surrogate.warn_outside_range(context.batch)
    num_values = context.batch.size * num_frames * math.prod(grid.shape) * problem.num_state_channels
    advice = "predict fewer --frames, or give fewer samples"
    require_memory(4 * num_values * COPIES, f"a roll-out of {num_frames} frames", advice)
    batches = list(context.batch.split(BATCH))
    predicted = []
    with (
        memory_explained(advice),
        torch.no_grad(),
        region,
        sharing.applied(surrogate),
        ProgressBar("rolling out", num_frames * len(batches), enabled=progress) as bar,
    ):
        for batch in batches:
            rolled = []
            for frame in rollout(surrogate, batch.to(home), num_frames, warn=False):
                rolled.append(frame.cpu())
                bar.advance()
            predicted.append(torch.stack(rolled, dim=1))
        frames = torch.cat(predicted).numpy()
    if not np.isfinite(frames).all():
        raise UserError(f"the roll-out of {source} left the finite numbers; predict fewer than {num_frames} frames")

    def save(path: Path) -> None:
        if path.suffix == ".npy":
            np.save(path, frames)
        else:
            np.savez_compressed(path, frames=frames, frame_dt=context.batch.frame_dt(problem))

    def animate(path: Path) -> None:
        frame_dt = context.batch.frame_dt(problem) if problem.num_context_frames else None
        mask = context.batch.mask
        shown = frames[0] if mask is None else np.where(mask[0].numpy()[..., None], frames[0], np.float32(np.nan))
        write_animation(
            path, shown, component=components(problem.state)[0], grid=grid, frame_dt=frame_dt, overwrite=True
        )

    write_together(dict(zip(files, (save, animate), strict=False)))
    names = tuple(f.name for f in problem.state)
    trained = " x ".join(map(str, problem.grid.shape))
    return Prediction(
        out,
        frames.shape,
        names,
        after=str(context),
        frame_dt=context.batch.frame_dt(problem) if problem.num_context_frames else None,
        other_grid="" if grid.shape == problem.grid.shape else f"not the {trained} points that it was trained on",
        other_parameters=other_parameters(surrogate, context.made_with),
    )
