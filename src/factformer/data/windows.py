"""Windows by index: runs of frames in every trajectory, one or more apart, and the order they are visited in."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from factformer.errors import UserError


def span(length: int, frame_stride: int = 1) -> int:
    """Frames of a trajectory that ``length`` frames reach over which lie ``frame_stride`` apart."""
    return (length - 1) * frame_stride + 1


def frames_from(start: int, length: int, frame_stride: int = 1) -> slice:
    """``length`` frames from ``start`` on that lie ``frame_stride`` apart."""
    return slice(start, start + span(length, frame_stride), frame_stride)


class Windows:
    """All windows of ``length`` frames that start at multiples of ``stride``, trajectory by trajectory.

    Frames of a window lie ``frame_stride`` apart; windows start at all of these phases. Of several frame strides, each
    has as many windows: those of the wider ones, which are fewer, count more than once.
    """

    def __init__(
        self,
        num_trajectories: int,
        num_frames: int,
        length: int,
        stride: int = 1,
        frame_stride: int | Sequence[int] = 1,
    ) -> None:
        self.frame_strides = (frame_stride,) if isinstance(frame_stride, int) else tuple(frame_stride)
        if min(length, stride, *self.frame_strides) < 1:
            smallest = min(stride, *self.frame_strides)
            raise UserError(f"window length and stride must be at least 1, got {length} and {smallest}")
        if num_trajectories < 1:
            raise UserError("the split is empty: it holds no trajectory")
        widest = max(self.frame_strides)
        if num_frames < span(length, widest):
            apart = "" if widest == 1 else f" that lie {widest} apart"
            raise UserError(
                f"a window of {length} frames{apart} does not fit into trajectories of {num_frames} frames; "
                "shorten context or horizon, or store more frames"
            )
        self.num_trajectories = num_trajectories
        self.num_frames = num_frames
        self.length = length
        self.stride = stride
        self._counts = [(num_frames - span(length, apart)) // stride + 1 for apart in self.frame_strides]
        self.num_per_trajectory = max(self._counts) * len(self._counts)

    def __len__(self) -> int:
        return self.num_trajectories * self.num_per_trajectory

    def __getitem__(self, index: int) -> tuple[int, int]:
        """Trajectory and first frame of window ``index``."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        trajectory, rest = divmod(index, self.num_per_trajectory)
        kind, position = divmod(rest, max(self._counts))
        return trajectory, position * self._counts[kind] // max(self._counts) * self.stride

    def frame_stride(self, index: int) -> int:
        """How far apart the frames of window ``index`` lie."""
        return self.frame_strides[index % self.num_per_trajectory // max(self._counts)]

    def frames(self, index: int) -> slice:
        """The frames of window ``index``."""
        return frames_from(self[index][1], self.length, self.frame_stride(index))

    def order(self, seed: int, epoch: int) -> Tensor:
        """A permutation of all window indices that depends on ``(seed, epoch)`` alone."""
        digest = hashlib.sha256(f"{seed}/{epoch}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
        return torch.randperm(len(self), generator=generator)
