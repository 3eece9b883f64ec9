"""What the encoders of a surrogate read: parts of a batch side by side, as the channels of frames.

One encoder reads what comes with each frame. What no frame changes, static fields and the closeness of walls, has an
encoder of its own; that of a steady problem is its one frame.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from factformer.batch import Batch
from factformer.grid import Grid
from factformer.nn.masks import WallCloseness
from factformer.problem import Problem

NEXT = "next "
"""Before the name of a part: that of the next frame."""


def parts_of_frames(problem: Problem) -> tuple[str, ...]:
    """The parts that come with each frame, in the order of their channels.

    Forcing is there twice: that of a frame, and that of the next one, which it drives.
    """
    forcing = ("forcing", f"{NEXT}forcing") if problem.forcing else ()
    return ("context", *forcing) if problem.num_context_frames else ("static", *forcing, *_walls(problem))


def still_parts(problem: Problem) -> tuple[str, ...]:
    """The parts that are the same for all frames of a problem in time."""
    static = ("static",) if problem.static else ()
    return (*static, *_walls(problem)) if problem.num_context_frames else ()


def _walls(problem: Problem) -> tuple[str, ...]:
    return ("walls",) if problem.masked else ()


def as_frames(
    parts: tuple[str, ...], batch: Batch, num_frames: int, walls: WallCloseness | None, grid: Grid
) -> Float[Tensor, "batch frame *grid channel"]:
    """These parts of a batch as ``num_frames`` frames."""
    found: list[Tensor] = []
    for name in parts:
        if name == "walls":
            assert batch.mask is not None and walls is not None
            found.append(walls(batch.mask, grid, batch.seen.dtype).unsqueeze(1))
            continue
        values: Tensor | None = getattr(batch, name.removeprefix(NEXT))
        assert values is not None
        first = int(name.startswith(NEXT))
        found.append(values.unsqueeze(1) if name == "static" else values[:, first : first + num_frames])
    return found[0] if len(found) == 1 else torch.cat(found, dim=-1)


def statistics_of(parts: tuple[str, ...], normalizer: nn.Module) -> Float[Tensor, "2 channel"]:
    """Mean and deviation of the channels of these parts; the closeness of walls is left as it is."""
    moments = []
    for moment in ("mean", "std"):
        like: Tensor = normalizer.get_buffer(f"state_{moment}")
        neutral = like.new_full((len(WallCloseness.spacings),), float(moment == "std"))
        named = {name: f"{name.removeprefix(NEXT)}_{moment}" for name in parts}
        found = [neutral if name == "walls" else normalizer.get_buffer(named[name]) for name in parts]
        moments.append(found[0] if len(found) == 1 else torch.cat(found))
    return torch.stack(moments)
