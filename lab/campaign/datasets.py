"""The datasets of the runs: how many trajectories, and in what they differ from the preset of their recipe.

They are solved on the machine that trains. Times are those of one H200, to plan by.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from factformer.pdes import Preset


@dataclass(frozen=True)
class Data:
    """The dataset that the entries of a recipe share, or some of them."""

    train: int
    test: int
    storage: str = "float32"
    """Number format of the training frames in memory; test frames are always float32."""
    batch_size: int | None = None
    """Trajectories solved at once, if not as the preset says."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Attributes of the preset that are others here; ``parameters`` are added to its own."""
    seconds: float = 20.0
    """What solving them takes, about."""

    def changed(self, preset: Preset) -> Preset:
        """The preset as it is for this dataset."""
        changes = dict(self.changes)
        if "parameters" in changes:
            changes["parameters"] = {**preset.parameters, **changes["parameters"]}
        return replace(preset, **changes)


STEPS = (1, 2, 3, 4, 2.5)
"""Intervals, in those of the recipe, at which one surrogate for several time steps is judged."""
REYNOLDS = (400, 1000)
"""Reynolds numbers of specialists."""
_STEP_WARMUP = 60 / 16


def _steps() -> dict[str, Data]:
    """Kolmogorov flows with frames further apart: whole numbers of intervals pass before the first."""
    return {
        f"kolmogorov-step-{step:g}": Data(
            4,
            20,
            changes={"frame_dt": step / 16, "num_frames": int(100 / step), "warmup": _STEP_WARMUP},
            seconds=5,
        )
        for step in STEPS
    }


def _specialists() -> dict[str, Data]:
    """Flows of nearly one Reynolds number, with the forcing of the range: what a specialist is trained on."""
    return {
        f"kolmogorov_reynolds-{number}": Data(
            100, 20, changes={"parameters": {"reynolds": f"{number}..{1.001 * number:g}"}}
        )
        for number in REYNOLDS
    }


DATA = {
    "kolmogorov": Data(100, 20),
    "darcy": Data(1000, 100, batch_size=100, seconds=10),
    "turbulence": Data(250, 40, "bfloat16", 50, seconds=40),
    "smoke": Data(250, 40, "bfloat16", 50, seconds=15),
    # The paper's number of trajectories; half the time step of the paper's text, as our preset has it.
    "turbulence-1000": Data(1000, 100, "bfloat16", 50, seconds=110),
    "smoke-2000": Data(2000, 100, "bfloat16", 50, seconds=35),
    "kolmogorov-points": Data(100, 20, changes={"downsampling": "points"}),
    "kolmogorov_reynolds": Data(100, 20, seconds=25),
    "darcy_literature": Data(1000, 200, batch_size=100, seconds=10),
    "navier_stokes_literature": Data(1000, 200, batch_size=200, seconds=60),
    **_steps(),
    **_specialists(),
}
"""By name: that of a recipe, or one that an entry asks for. A GPU of 139 GiB holds a thousand of the boxes; as many are
solved as leave most of ten minutes for training."""
