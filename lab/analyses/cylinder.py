"""A circular cylinder in `obstacle_flow` against the literature: drag, wake bubble and Strouhal number.

    python -m lab.analyses.cylinder            about fifteen minutes on one core; writes results/cpu/obstacle_flow.json

The box is 8 × 4 and periodic across the stream, so that a cylinder of diameter 0.2 blocks 5 % of it. Three studies: the
grid at Re = 40 and Re = 100, the penalisation at Re = 40, and the blockage at Re = 100.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence
from typing import Any

import torch

from factformer.batch import Batch
from factformer.evaluation.provenance import provenance, write_json
from factformer.pdes._common.bodies import body
from factformer.pdes.obstacle_flow import Parameters, force_on_bodies, pde
from lab import ROOT

CENTRE = (2.0, 2.0)
INTERVAL = 0.05  # between the frames at which forces are taken
STUDIES: dict[str, list[dict[str, float]]] = {
    "grid, Re 40": [
        {"reynolds": 40, "diameter": 0.2, "resolution": size, "duration": 10} for size in (160, 192, 256, 320, 384)
    ],
    "grid, Re 100": [
        {"reynolds": 100, "diameter": 0.2, "resolution": size, "duration": 20} for size in (160, 192, 256, 320)
    ],
    "penalisation, Re 40": [
        {"reynolds": 40, "diameter": 0.4, "resolution": 96, "duration": 10, "penalisation": 8e-3 / 2**halvings}
        for halvings in range(6)
    ],
    "blockage, Re 100": [
        {"reynolds": 100, "diameter": diameter, "resolution": round(64 / diameter), "duration": 40 * diameter + 4}
        for diameter in (0.8, 0.4)
    ],
}


def measure(
    reynolds: float, diameter: float, resolution: float, duration: float, penalisation: float = 2e-3
) -> dict[str, Any]:
    """Drag coefficient, length of the bubble behind the cylinder in diameters and, where it sheds, Strouhal number.

    Means over the second half of ``duration``; the bubble is that of the last frame, along the centre line.
    """
    began = time.perf_counter()
    parameters = Parameters(viscosity=diameter / reynolds, penalisation=penalisation)
    grid = pde.grid_of(pde.shape(int(resolution)), parameters)
    inside = body(grid, CENTRE, diameter / 2)
    mask = ~inside[None]
    x1, x2 = grid.mesh().unbind(-1)
    start = torch.zeros(1, *grid.shape, 2)
    start[..., 0] = 1
    if reynolds > 60:  # a kick, so that shedding begins at once
        away = (x1 - CENTRE[0] - 1.5 * diameter) ** 2 + (x2 - CENTRE[1]) ** 2
        start[0, ..., 1] = (0.3 * torch.exp(-away / diameter**2)).float()
    forces, frame = [], start
    for frame in pde.frames(start, round(duration / INTERVAL) + 1, INTERVAL, parameters, Batch(mask=mask)):
        forces.append(force_on_bodies(frame[:, None], mask, parameters)[0, 0].double())
    drag, lift = (2 / diameter * torch.stack(forces)[len(forces) // 2 :]).unbind(-1)
    row = {
        "reynolds": reynolds,
        "diameter": diameter,
        "points": list(grid.shape),
        "points_per_diameter": diameter / grid.spacing(0),
        "penalisation": penalisation,
        "duration": duration,
        "area_ratio": float(inside.sum()) * grid.spacing(0) * grid.spacing(1) / (math.pi * diameter**2 / 4),
        "drag": float(drag.mean()) if reynolds > 60 else float(drag[-1]),
        "bubble": _bubble(frame[0, :, round(CENTRE[1] / grid.spacing(1)), 0].tolist(), grid.spacing(0), diameter),
        "largest_speed_in_body": float(frame[0][inside].abs().max()),
        "strouhal": strouhal(lift.tolist(), INTERVAL, diameter) if reynolds > 60 else None,
        "lift_amplitude": float((lift - lift.mean()).abs().max()),
    }
    return {**row, "seconds": time.perf_counter() - began}


def _bubble(speed: Sequence[float], spacing: float, diameter: float) -> float | None:
    """From the rear of the cylinder to where the speed along the centre line turns positive, in diameters."""
    rear = CENTRE[0] + diameter / 2
    first = math.ceil(rear / spacing)
    for index, (here, there) in enumerate(itertools.pairwise(speed[first : first + 10 * first]), start=first):
        if here < 0 <= there:
            return (spacing * (index - here / (there - here)) - rear) / diameter
    return None


def strouhal(values: Sequence[float], step: float, diameter: float) -> float | None:
    """``f D / U`` from the times at which a signal rises through its mean."""
    mean = sum(values) / len(values)
    pairs = enumerate(itertools.pairwise([value - mean for value in values]))
    rises = [index - a / (b - a) for index, (a, b) in pairs if a < 0 <= b]
    return None if len(rises) < 3 else diameter * (len(rises) - 1) / ((rises[-1] - rises[0]) * step)


def main() -> None:
    began = time.perf_counter()
    torch.set_num_threads(1)
    found: dict[str, list[dict[str, Any]]] = {}
    for name, cases in STUDIES.items():
        found[name] = []
        for case in cases:
            found[name].append(measure(**case))
            print(name, {key: value for key, value in found[name][-1].items() if value is not None}, flush=True)
    known = provenance(seed=0, seconds=time.perf_counter() - began, device=torch.device("cpu"))
    write_json(ROOT / "results" / "cpu" / "obstacle_flow.json", {"studies": found, **known})


if __name__ == "__main__":
    main()
