"""Interpolation along an axis as a matrix, to be applied with `multiply_axis`."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from scipy.interpolate import CubicSpline
from torch import Tensor


def spline_matrix(source: Float[Tensor, " old"], target: Float[Tensor, " new"]) -> Float[Tensor, "new old"]:
    """Values at ``target`` of the cubic spline through values at ``source``, continued beyond the ends.

    Not-a-knot end conditions, the usual choice of ``interp2(…, 'spline')``.
    """
    spline = CubicSpline(source.double().cpu().numpy(), np.eye(len(source)), axis=0)
    return torch.from_numpy(spline(target.double().cpu().numpy())).to(source)
