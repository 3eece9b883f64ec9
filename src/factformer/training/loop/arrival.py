"""Whether a checkpoint holds what the run that reads it needs: every tensor by name, format, shape and value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from factformer.training.runfolder.checkpoint import corrupted


@dataclass(frozen=True)
class Expected:
    """What a tensor must be like; one ``per_process`` has any number of such rows."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    per_process: bool = False

    @classmethod
    def like(cls, tensor: Tensor, *, per_process: bool = False) -> Expected:
        return cls(tensor.dtype, tuple(tensor.shape), per_process)

    def complaint(self, tensor: Tensor) -> str:
        """What is wrong with ``tensor``; empty if nothing is."""
        shape = tuple(tensor.shape[1:] if self.per_process else tensor.shape)
        if tensor.dtype != self.dtype:
            return f"is of {tensor.dtype}, expected {self.dtype}"
        if shape != self.shape or (self.per_process and (not tensor.ndim or not len(tensor))):
            wanted = ", ".join(["processes"] * self.per_process + [str(size) for size in self.shape])
            return f"has shape {tuple(tensor.shape)}, expected ({wanted})"
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            return "holds NaN or infinite values"
        return ""


def check_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    required: Mapping[str, Expected],
    optional: Iterable[Mapping[str, Expected]] = (),
) -> None:
    """Raise where a tensor of the checkpoint ``path`` is missing, unknown or not as expected.

    Each group of ``optional`` ones is there as a whole or not at all.
    """
    expected = dict(required)
    for group in optional:
        if any(name in tensors for name in group):
            expected |= group
    for name in expected:
        if name not in tensors:
            raise corrupted(path, f"the tensor {name} is missing")
    for name, tensor in tensors.items():
        if name not in expected:
            raise corrupted(path, f"the run has no tensor {name[:80]!r}")
        complaint = expected[name].complaint(tensor)
        if complaint:
            raise corrupted(path, f"the tensor {name} {complaint}")
