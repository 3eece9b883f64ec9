"""`obstacle_flow` on a GPU: how long its data take, a surrogate on unseen bodies, and Strouhal numbers of cylinders.

    python -m lab.checks.body_generation --work WORK --out results/speed/bodies_h200.json
    python -m lab.checks.body_generation --only-data --work WORK --out -      solve and time the flows for the above

Training ends after a number of updates, so that it may share the GPU. The time of the data is that of a GPU alone if
they were solved before. The 500 flows of the preset should take under two minutes. Seen and unseen bodies are compared
at times after those of training, as in `lab.analyses.unseen_bodies`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import factformer
from factformer.data.store import open_dataset
from factformer.evaluation.accuracy import evaluate
from lab.analyses.unseen_bodies import CYLINDERS, later_errors, shedding
from lab.checks.common import DEVICE, TINY, keep, options

PAPER = {"preset": "paper", "frames": 60, "later": 92, "flows": 48, "starts": (60, 66, 72)}
SMALL = {"preset": "tiny", "frames": 24, "later": 48, "flows": 2, "starts": (24,)}


def run(*words: str) -> float:
    """Seconds of a command of the package."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "factformer", *words, "--device", DEVICE], check=True)
    return time.perf_counter() - began


def main() -> None:
    chosen = options(
        __doc__,
        ("--work", {"type": Path, "required": True}),
        ("--updates", {"type": int, "default": 15_000}),
        ("--only-data", {"action": "store_true"}),
    )
    sizes: dict[str, Any] = SMALL if chosen.tiny else PAPER
    began, updates = time.perf_counter(), 20 if chosen.tiny else chosen.updates
    data, later, folder, clock = (chosen.work / name for name in ("data", "later", "run", "seconds.txt"))
    make = ["generate", "obstacle_flow", "--preset", sizes["preset"]]
    if not clock.exists():
        shutil.rmtree(chosen.work, ignore_errors=True)
        seconds = run(*make, "--out", str(data))
        clock.write_text(f"{seconds}", encoding="utf-8")
    solving = float(clock.read_text(encoding="utf-8"))
    print(f"data: {solving:.1f} s", flush=True)
    if chosen.only_data:
        return
    for split in ("train", "test"):
        few = ["--split", split, "--trajectories", str(sizes["flows"]), "--set", f"num_frames={sizes['later']}"]
        run(*make, *few, "--out", str(later))
    settings = ["model.patch=2", "protocol.stride=2", "data.num_context_frames=2", "data.resolution=null"]
    settings += [f"model.{key}={value}" for key, value in TINY.items() if chosen.tiny]
    words = [word for text in settings for word in ("--set", text)]
    words += ["--precision", "bf16-mixed"] if DEVICE == "cuda" else []
    run("train", "obstacle", "--scale", "paper", "--data", str(data), "--out", str(folder), *words, *(
        "--set", f"training.updates={updates}", "--set", "training.budget_minutes=null",
        "--set", f"training.validate_every={updates}"
    ))  # fmt: skip
    surrogate = factformer.load(folder / "bundle").to(DEVICE).eval()
    test = evaluate(surrogate, open_dataset(data, "test"), device=DEVICE, timing=False).to_dict()
    bodies = {
        name: later_errors(surrogate, open_dataset(later, split), sizes["starts"])
        for name, split in {"seen": "train", "unseen": "test"}.items()
    }
    penalisation = surrogate.provenance["data_parameters"]["penalisation"]
    size = surrogate.problem.grid.shape[1]
    cylinders = (
        [] if chosen.tiny else [shedding(surrogate, **c, resolution=size, penalisation=penalisation) for c in CYLINDERS]
    )
    ratio = bodies["unseen"]["relative_l2"] / bodies["seen"]["relative_l2"]
    known = {key: surrogate.provenance[key] for key in ("updates", "training_seconds")}
    print(bodies, ratio, [row["ratio"] for row in cylinders], flush=True)
    told = {"data_seconds": solving, "training": {**known, "settings": settings}, "test": test["fields"]}
    keep(chosen.out, "body_generation", began, **told, bodies=bodies, unseen_over_seen=ratio, cylinders=cylinders)


if __name__ == "__main__":
    main()
