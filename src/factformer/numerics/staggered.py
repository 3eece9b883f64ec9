"""Vector fields on a staggered (MAC) grid in a closed box.

Component ``m`` lives on the faces normal to axis ``m``. A vector field is a list with one tensor per axis of
the *inner* faces, ``(batch, S_1, …, S_m - 1, …, S_n)``: those on the walls hold 0 and are not stored. Along
the other axes faces sit at the middle of cells, and a field that vanishes at the walls continues with zeros
half a cell outside of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

Faces = Sequence[Float[Tensor, " batch *inner_faces"]]
Cells = Float[Tensor, " batch *cells"]


def with_walls(values: Tensor, m: int) -> Tensor:
    """Component ``m`` with the zeros on both walls, ``S_m + 1`` faces along its own axis."""
    padding = [0, 0] * (values.ndim - 1)
    padding[2 * (values.ndim - 2 - m) : 2 * (values.ndim - 2 - m) + 2] = [1, 1]
    return torch.nn.functional.pad(values, padding)


def lower_faces(values: Tensor, m: int) -> Cells:
    """Component ``m`` on the lower face of each cell; the first is a wall."""
    return with_walls(values, m).narrow(m + 1, 0, values.shape[m + 1] + 1)


def inner_faces(values: Cells, m: int) -> Tensor:
    """Component ``m`` of a list of `lower_faces`, back from them."""
    return values.narrow(m + 1, 1, values.shape[m + 1] - 1).contiguous()


def between(values: Tensor, m: int) -> Tensor:
    """Means of neighbours along axis ``m``: from faces with walls to cells, or from cells to inner faces."""
    size = values.shape[m + 1]
    return 0.5 * (values.narrow(m + 1, 0, size - 1) + values.narrow(m + 1, 1, size - 1))


def at_cells(velocity: Faces) -> list[Tensor]:
    """Each component at the cell centres."""
    return [between(with_walls(values, m), m) for m, values in enumerate(velocity)]


def at_faces(cell_velocity: Sequence[Tensor], velocity: Faces, m: int) -> list[Tensor]:
    """All components on the inner faces normal to axis ``m``: its own, and the others, interpolated."""
    return [own if m == other else between(cell_velocity[other], m) for other, own in enumerate(velocity)]


def laplacian(values: Cells, spacing: Sequence[float]) -> Cells:
    """Second differences along every axis, with zeros one step beyond the ends."""
    result = values * (-2 * sum(1 / step**2 for step in spacing))
    for m, step in enumerate(spacing):
        inner = values.shape[m + 1] - 1
        low, high = values.narrow(m + 1, 0, inner), values.narrow(m + 1, 1, inner)
        result.narrow(m + 1, 1, inner).add_(low, alpha=1 / step**2)
        result.narrow(m + 1, 0, inner).add_(high, alpha=1 / step**2)
    return result
