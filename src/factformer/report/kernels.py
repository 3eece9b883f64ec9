"""The learned kernels a report shows: first and last layer, every axis, one head, on a real sample."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from factformer.batch import Batch
from factformer.bundle import load
from factformer.errors import UserError
from factformer.evaluation.attention import record_attention
from factformer.nn.attention import FactorizedAttention
from factformer.report.planes import Array, axis_name


def learned_kernels(bundle: str | Path, context: Array, *, head: int = 0) -> dict[str, Array]:
    """Axial kernels by caption; empty for models without factorized attention.

    ``context`` is ``(sample, frame, *grid, channel)``; the first sample is looked at.
    """
    surrogate = load(bundle).eval()
    if not any(isinstance(module, FactorizedAttention) for module in surrogate.modules()):
        return {}
    sample = Batch.of(surrogate.problem, np.ascontiguousarray(context[:1], dtype=np.float32))
    if set(surrogate.problem.parts) - set(sample.names):
        return {}  # the stored roll-outs hold the context alone
    kernels: dict[tuple[int, int], Tensor] = {}
    with torch.no_grad():
        for layer, calls in enumerate(record_attention(surrogate, sample)):
            for module, u, grid, mask in calls[:1]:
                if isinstance(module, FactorizedAttention):
                    for axis, kernel in enumerate(module.axial_kernels(u, grid, mask)):
                        kernels[layer, axis] = kernel[0]
    return captioned(kernels, head=head)


def captioned(kernels: Mapping[tuple[int, int], Tensor], *, head: int = 0) -> dict[str, Array]:
    """The kernels ``(head, points, points)`` of the first and last layer, by caption."""
    layers = sorted({layer for layer, _ in kernels})
    shown: dict[str, Array] = {}
    for layer in dict.fromkeys([*layers[:1], *layers[-1:]]):
        for axis in sorted(axis for other, axis in kernels if other == layer):
            matrices = kernels[layer, axis]
            if not 0 <= head < len(matrices):
                raise UserError(f"head {head} is not among the {len(matrices)} heads, counted from 0")
            shown[f"layer {layer + 1}, {axis_name(axis)}"] = matrices[head].float().cpu().numpy()
    return shown
