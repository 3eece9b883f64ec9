"""Memory of a process that holds a part of a periodic field: the start and a step of isotropic turbulence.

    python -m lab.equations.cut_memory --size 96 --out results/cpu/cut_memory.json

For one, two and four processes: what resident memory grows by, at its largest, over that before the start; what
tensors hold at the peak of a step, without what libraries take inside; and the bytes that a process sends in a step,
counted and by formula.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from factformer.evaluation.provenance import provenance, write_json
from factformer.numerics.pencil_traffic import sent_by_transform
from factformer.numerics.pencils import Pencils, PeriodicPart
from factformer.numerics.spectral import full_cutoff, padded_shape
from factformer.pdes import find_pde, solve
from factformer.training.footprint.live_memory import LiveMemory

CUTS = ((1, 1, 1), (2, 1, 1), (4, 1, 1), (2, 2, 1))
SEED = 0
STEP = 0.002


def resident(key: str) -> int:
    """``VmRSS`` or ``VmHWM``, the largest since `forget`, in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(key))


def forget() -> None:
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")


def measured(size: int, cut: tuple[int, ...]) -> dict[str, Any]:
    """What this process of a team needs and sends."""
    equation, shape = find_pde("isotropic_turbulence"), (size,) * 3
    whole = equation.problem(shape).grid
    pencils = Pencils(init_device_mesh("cpu", cut, mesh_dim_names=("axis0", "axis1", "axis2")))
    grid = PeriodicPart(whole, pencils)
    settings = equation.parameters.parse({"dt": STEP})
    # what the libraries set up at their first use is no part of the field
    small = PeriodicPart(equation.problem((16, 16, 16)).grid, pencils)
    first = equation.sample_initial(small, [torch.Generator()], dtype=torch.float32, device="cpu")
    list(solve(equation, first, 2, STEP, settings, grid=small))
    sent = []
    exchange = dist.all_to_all_single

    def counting(received: Any, given: Any, coming: Any, going: Any, group: Any) -> Any:
        sent.append((sum(going) - going[dist.get_rank(group)]) * 2 * given.element_size())
        return exchange(received, given, coming, going, group=group)

    dist.all_to_all_single = counting
    before = resident("VmRSS")
    forget()
    start = equation.sample_initial(grid, [torch.Generator().manual_seed(SEED)], dtype=torch.float32, device="cpu")
    of_start = resident("VmHWM") - before
    states: list[float] = []
    totals: list[int] = []
    for steps in (1, 2):
        forget()
        sent.clear()
        frames = solve(equation, start, 2, steps * STEP, settings, grid=grid)
        states = [float(frame.square().mean()) for frame in frames]
        totals.append(sum(sent))
    of_step = resident("VmHWM") - before
    with LiveMemory([start]) as live:
        list(solve(equation, start, 2, STEP, settings, grid=grid))
    cutoff = full_cutoff(shape)
    to_modes, to_points = sent_by_transform(padded_shape(cutoff), cutoff, cut, pencils.place)
    return {
        "start_bytes": of_start,
        "solving_bytes": of_step,
        "tensor_bytes": live.peak,
        "sent_bytes_of_a_step": totals[1] - totals[0],
        "formula": 8 * (12 * to_modes + 24 * to_points),
        "mean_square": states[-1],
    }


def process(rendezvous: str, rank: int, cut: tuple[int, ...], size: int) -> list[dict[str, Any]]:
    """Join the others, measure, and bring the findings of all together."""
    torch.set_num_threads(1)
    count = cut[0] * cut[1]
    dist.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=count, timeout=timedelta(hours=1)
    )
    found: list[Any] = [None] * count
    dist.all_gather_object(found, measured(size, cut))
    dist.destroy_process_group()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--process", nargs=5, metavar=("RENDEZVOUS", "RANK", "CUT0", "CUT1", "OUT"))
    options = parser.parse_args()
    if options.process:
        rendezvous, rank, first, second, out = options.process
        found = process(rendezvous, int(rank), (int(first), int(second), 1), options.size)
        if rank == "0":
            write_json(Path(out), {"processes": found})
        return
    import json

    began, rows = time.perf_counter(), []
    for cut in CUTS:
        with tempfile.TemporaryDirectory() as folder:
            words = [sys.executable, "-m", "lab.equations.cut_memory", "--size", str(options.size), "--process"]
            place = [f"{folder}/rendezvous"]
            jobs = [
                subprocess.Popen([*words, *place, str(rank), str(cut[0]), str(cut[1]), f"{folder}/found.json"])
                for rank in range(cut[0] * cut[1])
            ]
            if any(job.wait() for job in jobs):
                raise SystemExit("a process failed")
            found = json.loads(Path(folder, "found.json").read_text(encoding="utf-8"))["processes"]
        rows.append({"cut": cut, "processes": found})
        print(cut, max(own["start_bytes"] for own in found), max(own["solving_bytes"] for own in found))
    made = provenance(seed=SEED, seconds=time.perf_counter() - began, device="cpu")
    write_json(options.out, {**made, "size": options.size, "dtype": "float32", "rows": rows})


if __name__ == "__main__":
    main()
