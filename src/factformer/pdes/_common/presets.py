"""How datasets of our equations are made (`Preset`), and what is learned from them (`Task`)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Task:
    """What a surrogate learns: the frame interval, how many frames it sees and how many it predicts.

    An equation without time has no context: ``num_context_frames`` is 0.
    """

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
    num_axes: int | None = None
    """Of an equation that exists in several dimensions; by default as many as it has by itself."""
    proportions: tuple[int, ...] | None = None
    """Points along each axis over ``resolution``, where they differ; this then says the number of axes."""

    @property
    def num_dropped(self) -> int:
        """How many frames pass before the first stored one."""
        return round(self.warmup / self.frame_dt)


def _splits(train: int, valid: int, test: int) -> dict[str, int]:
    return {"train": train, "valid": valid, "test": test}


DARCY_FLOW_TASK = Task(num_context_frames=0)
DARCY_FLOW = {
    "paper": Preset(421, 421, 1, 1.0, _splits(1000, 50, 100), batch_size=20),
    "literature": Preset(85, 421, 1, 1.0, _splits(1000, 50, 200), batch_size=20),
    "small": Preset(61, 121, 1, 1.0, _splits(512, 32, 64), batch_size=8),
    "tiny": Preset(22, 43, 1, 1.0, _splits(16, 4, 4), batch_size=8),
}

KOLMOGOROV_FLOW_TASK = Task(1 / 16, num_context_frames=10, horizon=16)
KOLMOGOROV_FLOW = {
    "paper": Preset(256, 512, 160, 1 / 16, _splits(100, 10, 20), warmup=2 + 1 / 16, batch_size=20),
    "reynolds": Preset(
        128,
        512,
        160,
        1 / 16,
        _splits(100, 10, 20),
        warmup=2 + 1 / 16,
        batch_size=20,
        parameters={"reynolds": "200..2000:log", "forcing_wavenumber": "4..10"},
    ),
    "small": Preset(64, 192, 80, 1 / 16, _splits(16, 2, 4), warmup=2 + 1 / 16, batch_size=2),
    "reynolds_small": Preset(
        64,
        128,
        60,
        1 / 16,
        _splits(24, 3, 6),
        warmup=2 + 1 / 16,
        batch_size=3,
        parameters={"reynolds": "100..400:log", "forcing_wavenumber": "4..8"},
    ),
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

ADVECTION_DIFFUSION_TASK = Task(0.1, num_context_frames=2, horizon=20)
ADVECTION_DIFFUSION = {
    "paper": Preset(128, 128, 101, 0.1, _splits(200, 20, 40), batch_size=50),
    "small": Preset(64, 64, 41, 0.1, _splits(64, 8, 8), batch_size=8),
    "tiny": Preset(16, 16, 24, 0.1, _splits(4, 1, 1), batch_size=6),
}

BURGERS_TASK = Task(0.05, num_context_frames=2, horizon=40)
BURGERS = {
    "paper": Preset(512, 1024, 101, 0.05, _splits(1000, 100, 200), batch_size=200),
    "small": Preset(256, 512, 81, 0.05, _splits(256, 32, 32), batch_size=32),
    "tiny": Preset(48, 96, 44, 0.05, _splits(4, 1, 1), batch_size=6, parameters={"viscosity": 0.05}),
}

KURAMOTO_SIVASHINSKY_TASK = Task(0.5, num_context_frames=2, horizon=40)
KURAMOTO_SIVASHINSKY = {
    "paper": Preset(256, 256, 201, 0.5, _splits(1000, 100, 200), warmup=100.0, batch_size=200),
    "small": Preset(128, 128, 121, 0.5, _splits(128, 16, 16), warmup=60.0, batch_size=32),
    "tiny": Preset(48, 48, 44, 0.5, _splits(4, 1, 1), warmup=20.0, batch_size=6, parameters={"extent": 30.0}),
}

KORTEWEG_DE_VRIES_TASK = Task(0.05, num_context_frames=2, horizon=40)
KORTEWEG_DE_VRIES = {
    "paper": Preset(256, 256, 101, 0.05, _splits(1000, 100, 200), batch_size=200),
    "small": Preset(128, 128, 81, 0.05, _splits(128, 16, 16), batch_size=32),
    "tiny": Preset(64, 64, 44, 0.05, _splits(4, 1, 1), batch_size=6),
}

FISHER_KPP_TASK = Task(0.125, num_context_frames=2, horizon=20)
FISHER_KPP = {
    "paper": Preset(128, 256, 65, 0.125, _splits(200, 20, 40), batch_size=50),
    "small": Preset(64, 96, 41, 0.125, _splits(48, 6, 6), batch_size=8),
    "tiny": Preset(24, 24, 24, 0.125, _splits(4, 1, 1), batch_size=6, parameters={"viscosity": 0.05}),
}

GRAY_SCOTT_TASK = Task(20.0, num_context_frames=2, horizon=20)
GRAY_SCOTT = {
    "paper": Preset(128, 512, 101, 20.0, _splits(200, 20, 40), warmup=100.0, batch_size=50),
    "small": Preset(
        64, 192, 51, 20.0, _splits(16, 2, 2), warmup=100.0, batch_size=5, parameters={"extent": 1.25, "dt": 2.0}
    ),
    "tiny": Preset(32, 80, 24, 20.0, _splits(4, 1, 1), batch_size=6, parameters={"extent": 0.625, "dt": 4.0}),
}

SWIFT_HOHENBERG_TASK = Task(0.5, num_context_frames=2, horizon=20)
SWIFT_HOHENBERG = {
    "paper": Preset(128, 128, 81, 0.5, _splits(200, 20, 40), batch_size=50),
    "small": Preset(64, 64, 61, 0.5, _splits(32, 4, 4), batch_size=8, parameters={"extent": 10 * math.pi, "dt": 1 / 8}),
    "tiny": Preset(32, 32, 24, 0.5, _splits(4, 1, 1), batch_size=6, parameters={"extent": 20.0, "dt": 1 / 8}),
}

CAHN_HILLIARD_TASK = Task(0.25, num_context_frames=2, horizon=20)
CAHN_HILLIARD = {
    "paper": Preset(128, 320, 81, 0.25, _splits(200, 20, 40), warmup=1.0, batch_size=50),
    "small": Preset(
        64, 128, 41, 0.25, _splits(24, 3, 3), warmup=1.0, batch_size=6, parameters={"interface": 4e-3, "dt": 1 / 32}
    ),
    "tiny": Preset(32, 32, 24, 0.25, _splits(4, 1, 1), batch_size=6, parameters={"interface": 0.03, "dt": 1 / 16}),
}

VLASOV_POISSON_TASK = Task(0.5, num_context_frames=2, horizon=20)
# On velocities dv apart a wave k comes back after 2π / (k dv): 33.5 for the longest, 11.2 for a third of it. ``waves``
# has the longest alone, and 41 frames end at t = 20, so that none of these echoes is in the data. The waves are a few
# hundredths of f, so that errors of f would say little: what is stored and learned is its departure from a Maxwellian.
_FOUR_AXES = Preset(
    32,
    32,
    41,
    0.5,
    _splits(200, 20, 20),
    batch_size=10,
    parameters={"content": "departure"},
    initial="waves",
    num_axes=4,
)
VLASOV_POISSON = {
    "paper": Preset(32, 32, 61, 0.5, _splits(200, 20, 20), batch_size=10, num_axes=4),
    "four_axes": _FOUR_AXES,
    "four_axes_small": replace(
        _FOUR_AXES,
        resolution=12,
        simulation_resolution=12,
        num_trajectories=_splits(24, 4, 8),
        batch_size=4,
        parameters={"v_max": 4.5, "content": "departure"},
        proportions=(1, 1, 2, 2),
    ),
    "small": Preset(64, 64, 61, 0.5, _splits(64, 8, 8), batch_size=8),
    "tiny": Preset(24, 24, 24, 0.5, _splits(4, 1, 1), batch_size=6),
}

OBSTACLE_FLOW_TASK = Task(0.25, num_context_frames=4, horizon=16)
_VISCOSITIES = {"viscosity": "0.002..0.01:log"}
OBSTACLE_FLOW = {
    "paper": Preset(128, 128, 60, 0.25, _splits(400, 40, 60), warmup=8.0, batch_size=100, parameters=_VISCOSITIES),
    "small": Preset(
        64, 64, 32, 0.25, _splits(16, 2, 2), warmup=6.0, batch_size=4, parameters={**_VISCOSITIES, "penalisation": 5e-3}
    ),
    "tiny": Preset(
        16, 16, 24, 0.25, _splits(4, 1, 1), batch_size=6, parameters={"viscosity": "0.02..0.04", "penalisation": 0.025}
    ),
}

NAVIER_STOKES_TASK = Task(1.0, num_context_frames=10, horizon=10)
NAVIER_STOKES = {
    "paper": Preset(64, 256, 20, 1.0, _splits(1000, 50, 200), warmup=1.0, batch_size=50, downsampling="points"),
    "small": Preset(64, 64, 20, 1.0, _splits(32, 4, 4), warmup=1.0, batch_size=4, parameters={"viscosity": 1e-4}),
    "tiny": Preset(16, 32, 20, 1.0, _splits(4, 1, 1), warmup=1.0, batch_size=6, parameters={"viscosity": 1e-3}),
}
