"""Grids that no card holds, on paper: memory, bytes sent and predicted time of an update, by grid and number of GPUs.

    python -m lab.pages.large_grids        writes results/cpu/large_grids.json; what is there is not counted again

FactFormer in the paper's sizes for turbulence with patches of 2 × 2 × 2 points, one sample on all GPUs together, in
bfloat16; nothing is run. `lab.pages.make` puts the table into docs/how-to/several-gpus.md.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from factformer import recipes
from factformer.evaluation.provenance import provenance, write_json
from factformer.training.footprint.counted import count
from factformer.training.footprint.devices import GPUS
from factformer.training.footprint.predicted import predict_update, sent_bytes
from factformer.training.footprint.sharing import Share
from factformer.training.launch import described_problem
from lab import ROOT
from lab.pages.findings import markdown

RESULT = ROOT / "results" / "cpu" / "large_grids.json"
SIZES, NUMBERS, PER_NODE = (128, 256, 512, 1024), (1, 8, 64), 8
SETTINGS = ("model.name=factformer", "model.patch=2", "training.precision=bf16-mixed", "training.batch_size=1")
DEVICE = GPUS["h200"]


def row(size: int, devices: int) -> dict[str, Any]:
    """One update of one sample on so many GPUs."""
    experiment = recipes.build("turbulence", "paper", SETTINGS)
    share = Share(devices, devices)
    footprint = count(experiment, described_problem(experiment, (size,)), share)
    predicted = predict_update(footprint, DEVICE, experiment.training.precision, PER_NODE)
    moved = sum(sent_bytes(kind, given, devices, share.strategy) for kind, given in footprint.sent.items())
    return {
        "grid": size,
        "gpus": devices,
        "part": list(footprint.part),
        "execution": predicted.way,
        "training_bytes": footprint.training,
        "moved_bytes": moved,
        "sent": footprint.sent,
        "seconds": predicted.total,
        "work_seconds": predicted.work,
    }


def table(result: Mapping[str, Any]) -> list[str]:
    """The table of the page."""
    head = ["grid", "GPUs", "part of each", "memory", "leaves a GPU", "time of an update", "of it exchanges"]
    rows = []
    for one in result["rows"]:
        exchange = one["seconds"] - one["work_seconds"]
        rows.append(
            [
                f"{one['grid']}³",
                str(one["gpus"]),
                " × ".join(map(str, one["part"])),
                _gigabytes(one["training_bytes"]),
                _gigabytes(one["moved_bytes"]) if one["gpus"] > 1 else "–",
                _seconds(one["seconds"]) + (" (fused)" if one["execution"] == "fused" else ""),
                f"{exchange / one['seconds']:.0%}" if one["gpus"] > 1 else "–",
            ]
        )
    return markdown(head, rows)


def _gigabytes(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:,.3g} GB" if num_bytes < 1e12 else f"{num_bytes / 1e12:.3g} TB"


def _seconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def main() -> None:
    began = time.perf_counter()
    rows = json.loads(RESULT.read_text(encoding="utf-8"))["rows"] if RESULT.is_file() else []
    told = {"model": list(SETTINGS), "device": DEVICE.name, "source": DEVICE.source, "gpus_per_computer": PER_NODE}
    for size in SIZES:
        for devices in NUMBERS:
            if any((one["grid"], one["gpus"]) == (size, devices) for one in rows):
                continue
            rows.append(row(size, devices))
            print(rows[-1], flush=True)
            rows.sort(key=lambda one: (one["grid"], one["gpus"]))
            made = provenance(seconds=time.perf_counter() - began)
            write_json(RESULT, {"analysis": "large_grids", **told, "rows": rows, **made})


if __name__ == "__main__":
    main()
