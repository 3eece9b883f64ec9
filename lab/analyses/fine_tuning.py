"""With which learning rate a trained surrogate goes on: new data of the same flow, another flow, another grid.

    python -m lab.analyses.fine_tuning --out results/cpu/fine_tuning.json

`kolmogorov-64-small` is trained on with shares of the learning rate that a training from scratch would have, and a
network of the same sizes from scratch, all with as many updates. The table gives the relative L2 error of roll-outs
over 8 frames of flows that were not trained on.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import factformer
from factformer.data import generate, open_dataset
from factformer.data.dataset import Dataset
from factformer.evaluation.provenance import provenance, write_json
from factformer.rollout import rollout
from factformer.surrogate import Surrogate

BUNDLE = "kolmogorov-64-small"
TASKS: dict[str, dict[str, Any]] = {
    "the same flow": {},
    "Reynolds number 300, 4 waves": {"parameters": {"reynolds": 300.0, "forcing_wavenumber": 4}},
    "48 points": {"resolution": 48, "simulation_resolution": 192},
}
SHARES = (1.0, 0.3, 0.1, 0.03)
FRAMES, HORIZON = 24, 8


def data_of(task: dict[str, Any], folder: Path, trajectories: int) -> tuple[Dataset, Dataset]:
    """Flows to train on and others to test with, at the frame interval of the bundle."""
    given = {"resolution": 64, "simulation_resolution": 128, "seed": 7, "batch_size": 4, **task}
    settings = [f"num_frames={FRAMES}", "warmup=6", f"frame_dt={factformer.load(BUNDLE).problem.frame_dt}"]
    counts = {"train": trajectories, "test": 8}
    generate("kolmogorov_flow", folder, splits=list(counts), trajectories=counts, settings=settings, **given)
    train, test = (open_dataset(folder, split, num_context_frames=2, horizon=HORIZON) for split in counts)
    return train, test


def error(surrogate: Surrogate, data: Dataset) -> float:
    frames = data.read(range(data.num_trajectories), slice(8, 10 + HORIZON))
    with torch.no_grad():
        found = torch.stack(list(rollout(surrogate.eval(), frames[:, :2], HORIZON)), dim=1)
    wrong, size = ((x.flatten(1)).norm(dim=1) for x in (found - frames[:, 2:], frames[:, 2:]))
    return float((wrong / size).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--updates", type=int, nargs="+", default=[100, 400])
    parser.add_argument("--trajectories", type=int, default=16)
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    began, rows = time.perf_counter(), []
    bundle = factformer.load(BUNDLE)
    scratch = bundle.config
    for name, task in TASKS.items():
        with tempfile.TemporaryDirectory() as folder:
            train, test = data_of(task, Path(folder), options.trajectories)
            before = error(bundle, test)
            for updates in options.updates:
                for seed in range(options.seeds):
                    common: dict[str, Any] = {"updates": updates, "progress": False}
                    settings: dict[str, Any] = {"training.seed": seed, "protocol.stride": 1}
                    fresh = factformer.fit(train, model=scratch, settings=settings, **common)
                    row = {
                        "task": name,
                        "updates": updates,
                        "seed": seed,
                        "before": before,
                        "fresh": error(fresh, test),
                    }
                    for share in SHARES:
                        settings["training.learning_rate"] = 6e-3 * share
                        tuned = factformer.fit(train, init=BUNDLE, settings=settings, **common)
                        row[f"{share:g}"] = error(tuned, test)
                    rows.append(row)
                    print(row, flush=True)
    result = {
        "benchmark": __doc__.split("\n")[0],
        "bundle": BUNDLE,
        "trajectories": options.trajectories,
        "learning_rate": 6e-3,
        "rows": rows,
        **provenance(seed=0, seconds=time.perf_counter() - began, device=torch.device("cpu")),
    }
    write_json(options.out, result)


if __name__ == "__main__":
    main()
