"""How datasets of our equations are made (`Preset`), and what is learned from them (`Task`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Task:
    """What a surrogate learns: the frame interval, how many frames it sees and how many it predicts."""

    frame_dt: float = 1.0
    num_context_frames: int = 1
    horizon: int = 1


@dataclass(frozen=True)
class Preset:
    """How a dataset is made: solver and stored grid, frames, what passes before the first, and how many.

    The first stored frame is at time ``warmup``, a whole number of frame intervals: of the frames that the
    solver gives, counting the initial state, the first `num_dropped` are not stored. ``initial`` and
    ``downsampling`` are passed on to `PDE.sample_initial` and `PDE.downsample`.
    """

    resolution: int
    simulation_resolution: int
    num_frames: int
    frame_dt: float
    num_trajectories: Mapping[str, int]
    warmup: float = 0.0
    batch_size: int = 8
    parameters: Mapping[str, Any] = field(default_factory=dict)
    initial: str | None = None
    downsampling: str | None = None

    @property
    def num_dropped(self) -> int:
        """How many frames pass before the first stored one."""
        return round(self.warmup / self.frame_dt)


def _splits(train: int, valid: int, test: int) -> dict[str, int]:
    return {"train": train, "valid": valid, "test": test}


DARCY_FLOW_TASK = Task(num_context_frames=0)
DARCY_FLOW = {
    "paper": Preset(421, 421, 1, 1.0, _splits(1000, 50, 100), batch_size=20),
    "small": Preset(61, 121, 1, 1.0, _splits(512, 32, 64), batch_size=8),
    "tiny": Preset(22, 43, 1, 1.0, _splits(16, 4, 4), batch_size=8),
}

KOLMOGOROV_FLOW_TASK = Task(1 / 16, num_context_frames=10, horizon=16)
KOLMOGOROV_FLOW = {
    "paper": Preset(256, 512, 160, 1 / 16, _splits(100, 10, 20), warmup=2 + 1 / 16, batch_size=20),
    "small": Preset(64, 192, 80, 1 / 16, _splits(16, 2, 4), warmup=2 + 1 / 16, batch_size=2),
    "tiny": Preset(32, 48, 32, 1 / 16, _splits(4, 1, 1), warmup=1.0, batch_size=6),
}

ISOTROPIC_TURBULENCE_TASK = Task(0.05, num_context_frames=10, horizon=10)
_TURBULENCE = Preset(60, 60, 20, 0.05, _splits(1000, 50, 100), warmup=0.05, batch_size=10)
ISOTROPIC_TURBULENCE = {
    "paper": _TURBULENCE,
    "released": replace(_TURBULENCE, initial="released"),
    "small": replace(
        _TURBULENCE,
        resolution=24,
        simulation_resolution=24,
        num_trajectories=_splits(48, 6, 8),
        batch_size=2,
        parameters={"viscosity": 0.02, "dt": 0.01},
    ),
    "tiny": replace(
        _TURBULENCE,
        resolution=12,
        simulation_resolution=12,
        num_trajectories=_splits(4, 1, 1),
        batch_size=6,
        parameters={"viscosity": 0.04, "dt": 0.025},
    ),
}

SMOKE_BUOYANCY_TASK = Task(0.75, num_context_frames=4, horizon=16)
SMOKE_BUOYANCY = {
    "paper": Preset(64, 64, 20, 0.75, _splits(2000, 100, 200), warmup=9 * 0.75, batch_size=8),
    "small": Preset(24, 24, 20, 0.75, _splits(64, 8, 8), warmup=9 * 0.75, batch_size=4),
    "tiny": Preset(12, 12, 20, 0.75, _splits(4, 1, 1), warmup=9 * 0.75, batch_size=6),
}
