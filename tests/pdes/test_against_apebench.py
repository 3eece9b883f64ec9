"""Our translation of APEBench's scenarios against its own steppers.

Needs ``pip install apebench``; run with ``pytest -m thirdparty``.
"""

import pytest
import torch

from lab.analyses.apebench_scenarios import POINTS, SCENARIOS
from solver_cases import relative

pytestmark = pytest.mark.thirdparty


def without_nyquist(state: torch.Tensor) -> torch.Tensor:
    """Channels ``(channel, *grid)`` without the highest mode of each axis, which our series do not hold.

    The factors of products are cut below it, so it acts on no other mode.
    """
    axes = tuple(range(1, state.ndim))
    modes = torch.fft.fftn(state, dim=axes)
    for axis in axes:
        modes.select(axis, state.shape[axis] // 2).zero_()
    return torch.fft.ifftn(modes, dim=axes).real


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_trajectory_is_apebenchs_to_round_off(name: str) -> None:
    """Three frames from the same start in float64 on its own grid; one frame in three dimensions.

    Measured with apebench 0.1.1 and exponax 0.1.0: 3e-16 to 7e-15, relative.
    """
    jax = pytest.importorskip("jax")
    jax.config.update("jax_enable_x64", True)
    apebench = pytest.importorskip("apebench")
    import numpy as np

    scenario = SCENARIOS[name]
    kind, options = name.split("_", 1)[1], {}
    if kind == "phy_gs_theta":
        kind, options = "phy_gs_type", {"pattern_type": "theta"}
    theirs = apebench.scenarios.scenario_dict[kind](
        num_spatial_dims=scenario.num_axes, num_points=POINTS[scenario.num_axes], **options
    )
    stepper, num_frames = theirs.get_ref_stepper(), 2 if scenario.num_axes == 3 else 4
    start = scenario.starts(1, seed=3)
    ours = scenario.trajectories(start, num_frames)[0].movedim(-1, 1) * scenario.unit
    state = jax.numpy.asarray(ours[0].numpy())
    for frame in ours[1:]:
        state = stepper(state)
        difference = relative(without_nyquist(frame), without_nyquist(torch.from_numpy(np.array(state))))
        assert difference < 1e-13
    assert relative(ours[0], ours[-1]) > 1e-4  # it has gone somewhere
