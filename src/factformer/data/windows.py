"""Windows by index: runs of consecutive frames in every trajectory, and the order they are visited in."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from factformer.errors import UserError


class Windows:
    """All windows of ``length`` frames that start at multiples of ``stride``, trajectory by trajectory."""

    def __init__(self, num_trajectories: int, num_frames: int, length: int, stride: int = 1) -> None:
        if length < 1 or stride < 1:
            raise UserError(f"window length and stride must be at least 1, got {length} and {stride}")
        if num_trajectories < 1:
            raise UserError("the split is empty: it holds no trajectory")
        if num_frames < length:
            raise UserError(
                f"a window of {length} frames does not fit into trajectories of {num_frames} frames; "
                "shorten context or horizon, or store more frames"
            )
        self.num_trajectories = num_trajectories
        self.num_frames = num_frames
        self.length = length
        self.stride = stride
        self.num_per_trajectory = (num_frames - length) // stride + 1

    def __len__(self) -> int:
        return self.num_trajectories * self.num_per_trajectory

    def __getitem__(self, index: int) -> tuple[int, int]:
        """Trajectory and first frame of window ``index``."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        trajectory, position = divmod(index, self.num_per_trajectory)
        return trajectory, position * self.stride

    def order(self, seed: int, epoch: int) -> Tensor:
        """A permutation of all window indices that depends on ``(seed, epoch)`` alone."""
        digest = hashlib.sha256(f"{seed}/{epoch}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
        return torch.randperm(len(self), generator=generator)
