"""Our translation of APEBench's scenarios against its own steppers.

Needs ``pip install apebench``; run with ``pytest -m thirdparty``.
"""

import pytest
import torch

from factformer.studies.apebench.scenarios import POINTS, SCENARIOS, find_scenario
from solver_cases import relative

pytestmark = pytest.mark.thirdparty
THEIRS = {
    "diff_adv": "diff_adv",
    "diff_diff": "diff_diff",
    "diff_adv_diff": "diff_adv_diff",
    "diff_burgers": "diff_burgers",
    "diff_ks_cons": "diff_ks_cons",
    "diff_ks": "diff_ks",
    "phy_kolm_flow": "phy_kolm_flow",
    "phy_sh": "phy_sh",
    "phy_gs_theta": "phy_gs_type",
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_trajectory_is_apebenchs_to_round_off(name: str) -> None:
    """Three frames from the same start in float64, on its own grid (smaller in three dimensions: one frame).

    Measured: 1e-15 to 5e-12, relative.
    """
    jax = pytest.importorskip("jax")
    jax.config.update("jax_enable_x64", True)
    apebench = pytest.importorskip("apebench")
    import numpy as np

    scenario = find_scenario(name)
    options = {"pattern_type": "theta"} if "gs_" in name else {}
    theirs = apebench.scenarios.scenario_dict[THEIRS[name.split("_", 1)[1]]](
        num_spatial_dims=scenario.num_axes, num_points=POINTS[scenario.num_axes], **options
    )
    stepper, num_frames = theirs.get_ref_stepper(), 2 if scenario.num_axes == 3 else 4
    start = scenario.starts(1, seed=3)
    ours = scenario.trajectories(start, num_frames)[0] * scenario.unit
    first = (start[0] * scenario.unit).movedim(-1, 0)
    shift = POINTS[2] // 8 if name == "2d_phy_kolm_flow" else 0
    state = jax.numpy.asarray(first.roll(-shift, -1).numpy())
    for frame in ours[1:]:
        state = stepper(state)
        found = torch.from_numpy(np.array(state)).roll(shift, -1).movedim(0, -1)
        assert relative(frame, found) < 1e-11
    assert relative(ours[0], ours[-1]) > 1e-4  # it has gone somewhere
