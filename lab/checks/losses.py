"""Losses of short seeded trainings on a GPU in bfloat16, by this source and by an earlier one.

    git archive 3f4abe3 src | tar -x --one-top-level=.device-deps/before        where there is a history
    python -m lab.checks.losses --before .device-deps/before/src --out results/seeded-losses/h200.json

Every problem at the paper's sizes of the network on a small grid, 200 updates each. Both train on the data that the
earlier source solves, which does not read today's files; ``same_data`` says whether today's source solves
the same bits.
Ends with 1 where a loss differs in a bit; the file then says from which update on, and by how much.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import h5py

from lab.checks.common import DEVICE, TINY, keep, options
from lab.seeded_losses import DATA, run

MODELS = ("factformer", "factformer_plus")
UPDATES, TINY_UPDATES = 200, 3
LARGER = {
    "kolmogorov": ["kolmogorov_flow", "--resolution", "64", "--simulation-resolution", "64", "--set", "num_frames=24"],
    "turbulence": ["isotropic_turbulence", "--resolution", "24", "--simulation-resolution", "24"],
    "smoke": ["smoke_buoyancy", "--resolution", "24"],
    "darcy": ["darcy_flow", "--resolution", "61", "--simulation-resolution", "121"],
}


def losses(recipe: str, model: str, data: Path, out: Path, updates: int, tiny: bool, source: str | None) -> list[str]:
    """The loss of every update, as hexadecimal floats."""
    settings: dict[str, Any] = {
        "model.name": model,
        "training.updates": updates,
        "training.log_every": 1,
        "training.validate_every": updates,
        "training.batch_size": 2,
        "training.checkpoint_every": updates,
        "training.precision": "bf16-mixed" if DEVICE == "cuda" else "32-true",
        "data.resolution": "null",
    }
    settings |= {f"model.{key}": value for key, value in TINY.items() if tiny}
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    scale = ["--scale", "small" if tiny else "paper"]
    run("train", recipe, *scale, "--data", str(data), "--out", str(out), "--device", DEVICE, *words, source=source)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [float(line["loss"]).hex() for line in lines if "loss" in line]


def compared(now: list[str], before: list[str]) -> dict[str, Any]:
    """Whether two rows of losses are the same and, if not, where they part."""
    pairs = [(float.fromhex(a), float.fromhex(b)) for a, b in zip(now, before, strict=False)]
    first = next((place for place, (a, b) in enumerate(pairs) if a != b), None)
    if first is None:
        return {"same": len(now) == len(before)}
    return {"same": False, "from_update": first + 1, "largest": max(abs(a / b - 1) for a, b in pairs)}


def same_fields(one: Path, other: Path) -> bool:
    """Whether two folders of data hold the same bits in the training split."""

    def fields(folder: Path) -> dict[str, bytes]:
        found: dict[str, bytes] = {}

        def take(name: str, item: object) -> None:
            if isinstance(item, h5py.Dataset) and name.startswith(("t0_fields", "t1_fields", "t2_fields")):
                found[name] = item[...].tobytes()

        with h5py.File(folder / "train.hdf5") as file:
            file.visititems(take)
        return found

    known, others = fields(one), fields(other)
    return bool(known) and known == others


def main() -> int:
    chosen, began = options(__doc__, ("--before", {"help": "folder of an earlier source"})), time.perf_counter()
    if chosen.before and not Path(chosen.before, "factformer").is_dir():
        print(f"there is no source in {chosen.before}: unpack it first, as `python -m lab.checks.losses --help` says")
        return 2
    sources = {"now": None, **({"before": chosen.before} if chosen.before else {})}
    updates = TINY_UPDATES if chosen.tiny else UPDATES
    rows: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(4 if DEVICE == "cuda" else 1) as pool:
        for recipe, words in (DATA if chosen.tiny else LARGER).items():
            if recipe not in LARGER or (chosen.tiny and recipe != "darcy"):
                continue
            data = {name: Path(folder, f"data-{recipe}-{name}") for name in sources}
            for name, source in sources.items():
                made = ["--trajectories", "3", "--device", "cpu", "--out", str(data[name])]
                run("generate", *words, *made, source=source)
            same_data = same_fields(*data.values()) if len(data) > 1 else None
            tasks = {
                (model, name): pool.submit(
                    losses,
                    recipe,
                    model,
                    list(data.values())[-1],
                    Path(folder, f"{recipe}-{model}-{name}"),
                    updates,
                    chosen.tiny,
                    source,
                )
                for model, (name, source) in product(MODELS[: 1 if chosen.tiny else None], sources.items())
            }
            for (model, name), task in tasks.items():
                rows.setdefault(f"{recipe}/{model}", {"same_data": same_data})[name] = task.result()
    for key, row in rows.items():
        row |= compared(row["now"], row["before"]) if "before" in row else {}
        print(key, {name: value for name, value in row.items() if name not in sources}, flush=True)
    keep(chosen.out, "losses", began, updates=updates, before="3f4abe3" if chosen.before else None, losses=rows)
    return int(not all(row.get("same", True) for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
