"""Long roll-outs of `kolmogorov-64-small`, held against solutions that are as long: spectra, and what patches leave.

    python -m lab.analyses.patches.long_rollouts --out results/cpu/long_rollouts.json

The flows begin at random and settle under a drag of 0.1, a time of 10: frames of the first 12 units of time, which the
bundle was trained and tested on, are no truth for frames at 100. So the flows are solved on for 60 units of time, and
the second half of that is compared with the last frames of the roll-outs. How far the thirds of that half are from each
other says how well a spectrum of so many frames is known.
"""

from __future__ import annotations

import time

import numpy as np
import torch
from numpy.typing import NDArray

import factformer
from factformer.evaluation.provenance import provenance, write_json
from factformer.rollout import rollout
from lab.analyses.new_solutions import new_solutions
from lab.analyses.patches.shapes import line, steps
from lab.analyses.small_bundle import deviation, spectrum
from lab.command_line import out_and_numbers

NAME = "kolmogorov-64-small"
FLOWS, SEED, SOLVER_POINTS = 4, 7, 128
FRAMES, SETTLED = 928, 464
"""Frames of a solution, 1/16 apart, and the first that counts."""
CALLS, LAST = 1000, 464
"""Calls of a roll-out, 1/8 apart, and how many at its end count."""
BAND = 31


def main() -> None:
    options = out_and_numbers(__doc__)
    began, processor = time.perf_counter(), time.process_time()
    torch.set_num_threads(1)
    surrogate = factformer.load(NAME)
    patch = surrogate.config.patch
    assert isinstance(patch, int)
    problem, settings = surrogate.problem, [f"num_frames={FRAMES}"]
    with new_solutions(problem, FLOWS, SEED, settings, simulation_resolution=SOLVER_POINTS) as dataset:
        stride = round(problem.frame_dt / dataset.problem.frame_dt)
        batch = dataset.batch(list(range(FLOWS)), 0, 1, num_context_frames=problem.num_context_frames, stride=stride)
        truth = dataset.read(list(range(FLOWS)))
    solved = time.process_time()
    with torch.no_grad():
        frames = torch.stack(list(rollout(surrogate, batch, CALLS)), dim=1)
    rolled = time.process_time()
    settled = truth[:, SETTLED:]
    late, ours = spectrum(settled), spectrum(frames[:, -LAST:])
    thirds = [ratio(spectrum(part), late) for part in settled.chunk(3, dim=1)]
    early = ratio(spectrum(truth[:, :160]), late)
    found = ratio(ours, late)
    parts = {"truth": settled, "first call": frames[:, :1], "last calls": frames[:, -LAST:]}
    write_json(
        options.out,
        {
            "analysis": "long roll-outs",
            "bundle": NAME,
            "flows": FLOWS,
            "calls": CALLS,
            **deviation(frames, found),
            "deviation_of_thirds_of_the_truth": [float(np.abs(third - 1).max()) for third in thirds],
            "deviation_of_thirds_up_to_wavenumber_16": [float(np.abs(third[:16] - 1).max()) for third in thirds],
            "early_truth_over_truth": early.tolist(),
            "standard_deviation_over_truth": float(frames[:, -LAST:].std() / settled.std()),
            "steps_across_borders_over_steps_within": {name: steps(values, patch) for name, values in parts.items()},
            "wavenumber_32_over_30_and_31": {name: line(values, patch) for name, values in parts.items()},
            "wavenumber_16_over_14_to_18": {name: line(values, 2 * patch) for name, values in parts.items()},
            "share_of_variance_at_wavenumber_32": {name: highest(values) for name, values in parts.items()},
            "processor_seconds": {"solver": solved - processor, "roll-out": rolled - solved},
            **provenance(seed=SEED, seconds=time.perf_counter() - began, device="cpu"),
        },
    )


def ratio(ours: NDArray[np.float64], truth: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of the spectra at wavenumbers 1 to `BAND`."""
    result: NDArray[np.float64] = ours[1 : BAND + 1] / truth[1 : BAND + 1]
    return result


def highest(frames: torch.Tensor) -> float:
    """Share of the variance in the highest wavenumber of either axis, which changes sign from point to point."""
    found = 0.0
    values = frames.double()
    for axis in (2, 3):
        signs = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(values.shape[axis] // 2)
        mode = (values.movedim(axis, -1) * signs).mean(-1)
        found += float(mode.square().mean() / values.square().mean())
    return found


if __name__ == "__main__":
    main()
