"""How a surrogate is given a part of its grid: which axes are cut, and what cannot be cut."""

from __future__ import annotations

from collections.abc import Sequence

from torch.distributed.device_mesh import init_device_mesh

from factformer.errors import UserError
from factformer.grid import Grid
from factformer.models._backbone import ModelConfig, backbone_of
from factformer.parallel.part import GridPart
from factformer.surrogate import Surrogate

LEAST_POINTS = 4
"""Points of a part along a cut axis."""


def cut_shape(shape: Sequence[int], domain: int, multiples: Sequence[int] | None = None) -> tuple[int, ...]:
    """How many parts each axis is cut into for so many processes: the longest one, in as few axes as possible.

    A part of an axis has at least `LEAST_POINTS`, and one of the ``multiples`` at which cuts lie; where one axis is too
    short for all processes, the next longest takes its share.
    """
    parts = [1] * len(shape)
    left, steps = domain, multiples or [1] * len(shape)
    for axis in sorted(range(len(shape)), key=lambda m: (-shape[m], m)):
        size, step = shape[axis], steps[axis]
        fits = [count for count in range(1, left + 1) if size // count >= LEAST_POINTS and -(-size // step) >= count]
        most = max((count for count in fits if left % count == 0), default=1)
        parts[axis] = most
        left //= most
    if left > 1:
        least = " x ".join(str(max(LEAST_POINTS, step)) for step in steps)
        raise UserError(
            f"a grid of {' x '.join(map(str, shape))} points cannot be cut into {domain} parts of at least "
            f"{least} points; use fewer processes"
        )
    return tuple(parts)


def check_cuttable(config: ModelConfig) -> None:
    """Raise where a model cannot work on a part of its grid."""
    if not backbone_of(config).cuttable:
        raise UserError(f"the model {config.name!r} cannot be cut over processes; leave out --domain")
    if getattr(config, "softmax", False):
        raise UserError("model.softmax needs whole rows of a kernel and cannot be cut over processes")


def cut_multiples(surrogate: Surrogate) -> list[int]:
    """Cuts of each axis lie at multiples of so many points: whole patches, and as many of them as the model needs."""
    num_axes = surrogate.problem.grid.num_axes
    patch = surrogate.patches.patch if surrogate.patches is not None else (1,) * num_axes
    return [surrogate.backbone.cut_multiple * points for points in patch]


def hold_part(surrogate: Surrogate, data_parallel: int, domain: int, device_type: str) -> GridPart:
    """Give the surrogate of each process its part of the grid; processes of one sample are neighbours in rank."""
    check_cuttable(surrogate.config)
    grid: Grid = surrogate.problem.grid
    cut = cut_shape(grid.shape, domain, cut_multiples(surrogate))
    names = ("data", *(f"axis{m}" for m in range(grid.num_axes)))
    mesh = init_device_mesh(device_type, (data_parallel, *cut), mesh_dim_names=names)
    part = GridPart.of(grid, mesh[names[1:]], cut_multiples(surrogate))
    surrogate.part = part
    return part
