"""Seconds to make each of the paper's datasets on a GPU, initial states included, disk excluded.

For the two spectral solvers the seconds in which the bytes of their kernels pass through memory at the speed of a copy
stand beside: that is what bounds them.

    python benchmarks/gpu_solvers.py --out results/speed/solvers.json            the paper's numbers
    python benchmarks/gpu_solvers.py --fraction 0.01 --device cpu                a quick look anywhere

Frames stay on the device as bfloat16 while a batch lives and are then dropped, so that what is timed is the solver.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

from factformer.data.generate.plan import trajectory_seed
from factformer.evaluation.provenance import provenance
from factformer.pdes import find_pde

# name: trajectories, grid, frames, frame interval, batch, parameters, seconds that the set may take
CASES: dict[str, tuple[int, int, int, float, int, dict[str, Any], float]] = {
    "kolmogorov_flow": (120, 512, 193, 1 / 16, 40, {}, 25.0),
    "kolmogorov_flow, Heun, dt 1/1024": (
        120,
        512,
        193,
        1 / 16,
        40,
        {"integrator": "crank_nicolson_heun", "dt": 1 / 1024},
        25.0,
    ),
    "isotropic_turbulence": (1100, 60, 21, 0.05, 50, {}, 60.0),
    "isotropic_turbulence, dt 0.005": (1100, 60, 21, 0.05, 50, {"dt": 0.005}, 60.0),
    "smoke_buoyancy": (2200, 64, 29, 0.75, 50, {}, 60.0),
    "darcy_flow": (1100, 421, 1, 1.0, 100, {}, 20.0),
}


def floor_seconds(case: str, count: int, bandwidth: float) -> float | None:
    """The bytes that the kernels of `factformer.kernels.solvers` read and write, at ``bandwidth`` bytes a second."""
    name = case.partition(",")[0]
    _, resolution, num_frames, frame_dt, _, options, _ = CASES[case]
    time = (num_frames - 1) * frame_dt
    if name == "kolmogorov_flow":
        size, cut = resolution, (resolution - 1) // 3
        kept = 2 * -(-(cut + 1) // 8) * 8  # columns of both halves, in blocks of eight
        state = 8 * (2 * cut + 1) * (cut + 1)
        lines, modes = 8 * size * kept, 8 * (2 * cut + 1) * kept
        heun = options.get("integrator") == "crank_nicolson_heun"
        evaluations, arrays = (2 * time / options["dt"], 3.0) if heun else (4 * time * size, 3.75)
        # spread; rows; columns; the stage of the time step
        each = state + lines + 2 * lines + lines + modes + modes + arrays * state
    elif name == "isotropic_turbulence":
        size, cut = 96, (resolution - 1) // 2
        kept, num = 2 * -(-(cut + 1) // 8) * 8, 2 * cut + 1
        state = 3 * 8 * num * num * (cut + 1)
        mixed, points, full = 8 * size * num * kept, 8 * size * size * kept, 8 * size**3
        evaluations = 4 * time / options.get("dt", 0.002)
        # spread; second axis; rows; products (the first two read all three fields, the third two); back; the stage
        each = state + 3 * mixed + 3 * (mixed + points) + 3 * (points + full) + 5 * full + 2 * points
        each += 2 * (points + mixed) + 2 * (mixed + 8 * num * num * kept) + 12 * num * num * kept + 4.25 * state
    else:
        return None
    return count * evaluations * each / bandwidth


def copy_bandwidth(device: str) -> float:
    """Bytes a second that a copy reads and writes."""
    source = torch.empty(2**28 if device.startswith("cuda") else 2**24, device=device)
    target = torch.empty_like(source)
    target.copy_(source)
    start = now(device)
    for _ in range(5):
        target.copy_(source)
    return 5 * 2 * source.numel() * 4 / (now(device) - start)


def measure(case: str, fraction: float, device: str) -> dict[str, Any]:
    """Solve one set, or a fraction of it, and return what it took."""
    name = case.partition(",")[0]
    count, resolution, num_frames, frame_dt, batch_size, options, limit = CASES[case]
    count = max(1, round(count * fraction))
    pde = find_pde(name)
    parameters = pde.parameters.parse(options)
    grid = pde.problem(resolution).grid
    # Kernels are compiled once per machine and kept on disk: that is shown, but it is not part of the set's time.
    start = now(device)
    one = pde.sample_initial(grid, [torch.Generator().manual_seed(0)], dtype=torch.float32, device=device)
    for _ in pde.frames(one, min(num_frames, 2), frame_dt, parameters):
        pass
    seconds_first = now(device) - start
    marks = {"initial": 0.0, "solve": 0.0}
    peak = 0.0
    for first in range(0, count, batch_size):
        indices = range(first, min(first + batch_size, count))
        start = now(device)
        generators = [torch.Generator().manual_seed(trajectory_seed(0, "train", i)) for i in indices]
        state = pde.sample_initial(grid, generators, dtype=torch.float32, device=device)
        middle = now(device)
        kept = [frame.to(torch.bfloat16) for frame in pde.frames(state, num_frames, frame_dt, parameters)]
        finite = bool(torch.isfinite(kept[-1]).all())
        marks["initial"] += middle - start
        marks["solve"] += now(device) - middle
        if not finite:
            raise SystemExit(f"{case}: the solution blew up")
        del kept
    if device.startswith("cuda"):
        peak = torch.cuda.max_memory_allocated() / 2**30
        torch.cuda.reset_peak_memory_stats()
    total = sum(marks.values())
    return {
        "case": case,
        "trajectories": count,
        "resolution": resolution,
        "frames": num_frames,
        "seconds": total,
        "seconds_initial": marks["initial"],
        "seconds_first_frame": seconds_first,
        "limit_seconds": limit * count / CASES[case][0],
        "batch_size": batch_size,
        "peak_gib": peak,
        "parameters": parameters.model_dump(mode="json"),
    }


def now(device: str) -> float:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fraction", type=float, default=1.0, help="share of each set to make")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    began = time.perf_counter()
    rows = []
    bandwidth = copy_bandwidth(options.device)
    print(f"a copy runs at {bandwidth / 1e12:.2f} TB/s", flush=True)
    for case in options.cases:
        row = measure(case, options.fraction, options.device)
        row["floor_seconds"] = floor_seconds(case, row["trajectories"], bandwidth)
        rows.append(row)
        floor = "" if row["floor_seconds"] is None else f", by bytes {row['floor_seconds']:.1f} s"
        print(
            f"{case:36s} {row['trajectories']:5d} trajectories {row['seconds']:8.2f} s "
            f"(initial states {row['seconds_initial']:.2f} s; first frame of all "
            f"{row['seconds_first_frame']:.1f} s), limit {row['limit_seconds']:.1f} s{floor}, "
            f"peak {row['peak_gib']:.1f} GiB",
            flush=True,
        )
        if options.out is not None:
            seconds = time.perf_counter() - began
            result = {
                "results": rows,
                "copy_bytes_per_second": bandwidth,
                **provenance(seed=0, seconds=seconds, device=options.device),
            }
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
