"""Patches, levels and borders of `factformer_plus` after equal processor time, with what is left of the patches.

    factformer generate kolmogorov_flow --preset small --simulation-resolution 128 --batch-size 4 \\
        --set num_frames=48 --split train --trajectories 16 --out data/small-64     (and --split valid --trajectories 4)
    python -m lab.analyses.patches.shapes --data data/small-64 --out results/cpu/patch_shapes.json

One thread; the clock of a training counts processor time. Errors are on the validation flows, over one second. Rows
that are in the file already are not made again. Those with "borders" had a convolution at full resolution after the
decoder, ``v + W gelu(K * v)`` with 16 channels between (``model.border_kernel`` of commit e96b4e4); it was taken out.

A pattern of the patches shows in two numbers, to be compared with those of the truth:

- steps: the mean square difference of neighbours on two sides of a patch's border over that of neighbours in one patch;
- line: the spectrum along an axis at the wavenumber of the patches over that of the wavenumbers beside it.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from factformer import fit
from factformer.data.store import StoredDataset, open_dataset
from factformer.evaluation.accuracy import evaluate
from factformer.evaluation.provenance import provenance, write_json
from factformer.rollout import rollout

BASE: dict[str, Any] = {
    "model.dim": 48,
    "model.depth": 4,
    "model.heads": 4,
    "model.head_dim": 16,
    "model.kernel_dim": 32,
    "protocol.stride": 2,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "patch 1": {"model.patch": 1},
    "patch 1, two levels": {"model.patch": 1, "model.levels": 2},
    "patch 2": {"model.patch": 2},
    "patch 2, depth 3": {"model.patch": 2, "model.depth": 3},
    "patch 2, depth 6": {"model.patch": 2, "model.depth": 6},
    "patch 2, two levels": {"model.patch": 2, "model.levels": 2},
    "patch 2, two levels, depth 6": {"model.patch": 2, "model.levels": 2, "model.depth": 6},
    "patch 4": {"model.patch": 4},
}
CONTEXT, CALLS, FLOWS = 2, 100, 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=1.25)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--only", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--pictures", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    train, valid = (open_dataset(options.data, split, num_context_frames=CONTEXT) for split in ("train", "valid"))
    began = time.perf_counter()
    known = json.loads(options.out.read_text(encoding="utf-8")) if options.out.exists() else {"rows": []}
    rows: list[dict[str, Any]] = known["rows"]
    before = float(known.get("wall_seconds", 0.0))
    for seed in options.seeds:
        for name in options.only:
            if any((row["variant"], row["seed"]) == (name, seed) for row in rows):
                continue
            row, frames = measured(name, seed, options.minutes, train, valid)
            rows.append(row)
            print(json.dumps(row), flush=True)
            made = provenance(seed=0, seconds=before + time.perf_counter() - began, device="cpu")
            found = {"analysis": "patches, levels, borders", "minutes": options.minutes, "base": BASE, "rows": rows}
            write_json(options.out, {**found, **made})
            if options.pictures:
                options.pictures.mkdir(parents=True, exist_ok=True)
                torch.save(frames, options.pictures / f"{name.replace(' ', '_')}-{seed}.pt")


def measured(
    name: str, seed: int, minutes: float, train: StoredDataset, valid: StoredDataset
) -> tuple[dict[str, Any], Tensor]:
    """One training and what it gave; the roll-outs besides."""
    settings = {**BASE, **VARIANTS[name], "training.budget_minutes": minutes, "training.seed": seed}
    processor = time.process_time()
    with mock.patch("factformer.training.loop.clock.time", SimpleNamespace(perf_counter=time.process_time)):
        surrogate = fit(train, progress=False, settings=settings)
    processor = time.process_time() - processor
    field = evaluate(surrogate, valid, num_frames=8, num_starts=3, timing=False).to_dict()["fields"]["vorticity"]
    stride = round(surrogate.problem.frame_dt / valid.problem.frame_dt)
    batch = valid.batch(list(range(FLOWS)), 0, 1, num_context_frames=CONTEXT, stride=stride)
    with torch.no_grad():
        spent = time.process_time()
        frames = torch.stack(list(rollout(surrogate, batch, CALLS)), dim=1)
        spent = time.process_time() - spent
    truth = valid.read(list(range(valid.num_trajectories)))
    patch = int(surrogate.config.patch) if isinstance(surrogate.config.patch, int) else 1
    row = {
        "variant": name,
        "seed": seed,
        "settings": VARIANTS[name],
        "parameters": surrogate.num_parameters,
        "updates": surrogate.provenance["updates"],
        "processor_seconds": round(processor, 1),
        "milliseconds_per_frame": round(1e3 * spent / CALLS / FLOWS, 2),
        "relative_l2": field["relative_l2"],
        "standard_error": field["standard_error"],
        "relative_l2_final": field["relative_l2_final"],
        "finite": bool(frames.isfinite().all()),
        **{
            f"{what} {when}": number(values, patch)
            for what, number in (("steps", steps), ("line", line))
            for when, values in (
                ("truth", truth),
                ("first frame", frames[:, :1]),
                ("one second", frames[:, 7:8]),
                ("end", frames[:, -10:]),
            )
            if patch > 1
        },
    }
    return row, frames[:, [0, 7, -1]]


def steps(frames: Tensor, patch: int) -> float:
    """Mean square differences of neighbours across borders of patches over those within, on both axes."""
    across, within = [], []
    for axis in (-3, -2):
        step = (frames.roll(-1, axis) - frames).double().square()
        place = step.movedim(axis, -1).unflatten(-1, (-1, patch)).flatten(0, -2).mean(0)
        across.append(place[-1])
        within.append(place[:-1].mean())
    return float(torch.stack(across).mean() / torch.stack(within).mean())


def line(frames: Tensor, patch: int) -> float:
    """The spectrum along an axis at the patches' wavenumber over the mean of two on each side that exist."""
    found = []
    for axis in (-3, -2):
        power = torch.fft.rfft(frames.double(), dim=axis).abs().square().movedim(axis, -1).flatten(0, -2).mean(0)
        at = frames.shape[axis] // patch
        beside = [k for k in (at - 2, at - 1, at + 1, at + 2) if k < len(power)]
        found.append(power[at] / power[beside].log().mean().exp())
    return float(torch.stack(found).mean())


if __name__ == "__main__":
    main()
