"""What it costs to generate the small dataset of each equation on one core.

    python -m lab.equations.generation_costs --out results/cpu/generation.json [--only NAME …]

Processor seconds of the whole process count solving and writing alike, and do not depend on what else the machine does.
An equation that was measured before keeps its row unless it is asked for.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from factformer import catalog
from factformer.data.generate.run import generate
from factformer.data.store import open_dataset
from factformer.evaluation.provenance import provenance, write_json
from factformer.pdes import find_pde

MORE = (("vlasov_poisson", "four_axes_small"),)
"""Other presets than ``small`` that the gallery shows."""


def cost(name: str, preset: str) -> dict[str, Any]:
    """Generate one dataset in a folder that is thrown away."""
    plan = find_pde(name).presets[preset]
    with tempfile.TemporaryDirectory() as folder:
        began, used = time.perf_counter(), time.process_time()
        files = generate(name, folder, preset=preset)
        seconds, wall = time.process_time() - used, time.perf_counter() - began
        grid = open_dataset(Path(folder), "train").problem.grid
        size = sum(file.stat().st_size for file in files)
    return {
        "equation": name,
        "preset": preset,
        "points": list(grid.shape),
        "frames": plan.num_frames,
        "trajectories": dict(plan.num_trajectories),
        "processor_seconds": round(seconds, 1),
        "wall_seconds": round(wall, 1),
        "megabytes": round(size / 1e6, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=[])
    options = parser.parse_args()
    torch.set_num_threads(1)
    began = time.perf_counter()
    known = json.loads(options.out.read_text(encoding="utf-8"))["rows"] if options.out.exists() else []
    rows = {(row["equation"], row["preset"]): row for row in known}
    for key in [*((name, "small") for name in catalog.names("pdes")), *MORE]:
        if key[0] not in options.only if options.only else key in rows:
            continue
        rows[key] = cost(*key)
        print(rows[key], flush=True)
        made = provenance(seconds=time.perf_counter() - began, device="cpu")
        ordered = [rows[key] for key in sorted(rows)]
        write_json(options.out, {"analysis": "generation", "precision": "float32", "rows": ordered, **made})


if __name__ == "__main__":
    main()
