"""Stores a trained run as the small bundle of the zoo, measures it, and writes its card.

    python -m lab.analyses.small_bundle runs/kolmogorov-64-small --data data/kolmogorov-64

Errors are on unseen flows. Long roll-outs are held against the truth by their spectra: the mean over the frames of all
test flows against that of the last frames of the roll-out. Times are processor seconds or the least of several calls.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import factformer
from factformer.bundle import load, save_bundle
from factformer.data.store import StoredDataset, open_dataset
from factformer.evaluation.accuracy import evaluate
from factformer.evaluation.provenance import provenance, write_json
from factformer.rollout import rollout
from factformer.surrogate import Surrogate
from lab import ROOT
from lab.analyses.new_solutions import new_solutions

NAME = "kolmogorov-64-small"
LONG = 1000
"""Calls of a long roll-out."""
LAST = 200
"""Calls at the end of a long roll-out whose spectra count."""
FLOWS = 4
GENERATE = (
    "factformer generate kolmogorov_flow --preset paper --resolution 64 --simulation-resolution 256 --split train "
    "--trajectories 100 --batch-size 2 --seed 0 --out data/kolmogorov-64"
)
CARD = """# {name}

`{model}` for `{problem}` on {shape} points, {parameters:,} parameters. For CPUs, and for the demo.

    surrogate = factformer.load("{name}")

| | |
|---|---|
| task | {context} frames at intervals of {frame_dt:g} in, one per call out, vorticity in physical units |
| size | {megabytes:.2f} MB, stored in float16 |
| data | 100 training solutions: `{generate}` |
| training | {minutes:.0f} minutes on {hardware}, shared with other work; {updates:,} updates |
| recipe | `kolmogorov`, small, with `model.patch=2`, `protocol.stride=2`, `data.num_context_frames=2`; seed 0 |
| error, vorticity | relative L2 {error:.4f} ± {spread:.4f} over one second, at its end {final:.4f} |
| roll-outs of {calls} calls | {finite}; spectrum within {spectrum:.0f} % of the truth up to wavenumber {band} |
| time | {one:.1f} ms a call on one thread |
| measured in | `results/cpu/{name}.json` |

Limits: one flow regime (Re = 1000, forcing wavenumber 8, drag 0.1). Other Reynolds numbers, forcings or frame
intervals are outside of what it has seen, and roll-outs of more than a second or two lose the true trajectory, as the
flow is chaotic.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    options = parser.parse_args()
    began = time.perf_counter()
    torch.set_num_threads(1)
    folder = ROOT / "zoo" / NAME
    trained = load(options.run)
    save_bundle(trained, folder, trained.provenance, storage=torch.float16, overwrite=True)
    surrogate = factformer.load(folder)
    dataset = open_dataset(options.data, "test", num_context_frames=surrogate.problem.num_context_frames)
    field = evaluate(surrogate, dataset, timing=False).to_dict()["fields"]["vorticity"]
    found = {
        "relative_l2": field,
        "bytes": sum(file.stat().st_size for file in folder.iterdir()),
        "parameters": sum(tensor.numel() for tensor in surrogate.parameters()),
        "training_seconds": surrogate.provenance["training_seconds"],
        "updates": surrogate.provenance["updates"],
        "long": long_rollouts(surrogate, dataset),
        "milliseconds": {str(threads): milliseconds(surrogate, dataset, threads) for threads in (1,)},
        "difference_of_the_data_from_a_simulation_on_512_points": convergence(surrogate),
    }
    made = provenance(seed=0, seconds=time.perf_counter() - began, device="cpu")
    write_json(ROOT / "results" / "cpu" / f"{NAME}.json", {"analysis": "small bundle", **found, **made})
    (folder / "README.md").write_text(card(surrogate, found, made["hardware"]), encoding="utf-8")


def spectrum(frames: torch.Tensor) -> np.ndarray[Any, Any]:
    """Variance in shells of whole wavenumbers, the mean over frames ``(*, x, y, 1)``."""
    values = frames.squeeze(-1).double()
    power = torch.fft.fft2(values, norm="forward").abs().square().flatten(0, -3).mean(0)
    numbers: torch.Tensor = torch.fft.fftfreq(power.shape[0], 1 / power.shape[0], dtype=torch.float64)
    shells = (numbers[:, None] ** 2 + numbers**2).sqrt().round().long()
    return (
        torch.zeros(int(shells.max()) + 1, dtype=torch.float64).index_add_(0, shells.flatten(), power.flatten()).numpy()
    )


def long_rollouts(surrogate: Surrogate, dataset: StoredDataset) -> dict[str, Any]:
    stride = round(surrogate.problem.frame_dt / dataset.problem.frame_dt)
    batch = dataset.batch(
        list(range(FLOWS)), 0, 1, num_context_frames=surrogate.problem.num_context_frames, stride=stride
    )
    with torch.no_grad():
        frames = torch.stack(list(rollout(surrogate, batch, LONG)), dim=1)
    truth = spectrum(dataset.read(list(range(dataset.num_trajectories))))
    ours = spectrum(frames[:, -LAST:])
    band = surrogate.problem.grid.shape[0] // 2 - 1
    ratio = ours[1 : band + 1] / truth[1 : band + 1]
    line = band // 2 + 1  # the patches' own wavenumber: one cycle per two patches is 16 of 64 points, per patch 32
    neighbours = [line - 2, line - 1, line + 1, line + 2]
    return {
        "flows": FLOWS,
        "calls": LONG,
        **deviation(frames, ratio),
        "at_the_patch_over_its_neighbours": {
            str(at): float(ratio[at - 1] / np.mean([ratio[k - 1] for k in near if k <= band]))
            for at, near in ((line, neighbours), (band, [band - 2, band - 1]))
        },
        "standard_deviation_over_truth": float(frames[:, -LAST:].std() / dataset.read(slice(None)).std()),
    }


def deviation(frames: torch.Tensor, ratio: np.ndarray[Any, Any]) -> dict[str, Any]:
    """How far the spectrum of a roll-out is from the truth, ``ratio`` of which it is."""
    return {
        "finite": bool(frames.isfinite().all()),
        "spectrum_over_truth": ratio.tolist(),
        "largest_deviation": float(np.abs(ratio - 1).max()),
        "largest_deviation_up_to_wavenumber_16": float(np.abs(ratio[:16] - 1).max()),
    }


def milliseconds(surrogate: Surrogate, dataset: StoredDataset, threads: int) -> dict[str, float]:
    """Wall-clock and processor time of a call with one flow, the least of many."""
    batch = dataset.batch([0], 0, 1, num_context_frames=surrogate.problem.num_context_frames, stride=2)
    torch.set_num_threads(threads)
    wall, processor = [], []
    with torch.no_grad():
        for _ in range(60):
            start, used = time.perf_counter(), time.process_time()
            next(rollout(surrogate, batch, 1))
            wall.append(time.perf_counter() - start)
            processor.append(time.process_time() - used)
    torch.set_num_threads(1)
    return {"wall": 1e3 * min(wall), "processor": 1e3 * min(processor)}


def convergence(surrogate: Surrogate) -> list[float]:
    """Relative difference of 16 frames of one flow between solutions on 256 and on 512 points per axis."""
    problem, found = surrogate.problem, []
    for size in (256, 512):
        with new_solutions(problem, 1, 1, ["num_frames=16"], simulation_resolution=size) as dataset:
            found.append(dataset.read([0]).double())
    coarse, fine = found
    change = (coarse - fine).flatten(2).norm(dim=2) / fine.flatten(2).norm(dim=2)
    return [round(float(value), 6) for value in change[0]]


def on_card(surrogate: Surrogate, num_bytes: int) -> dict[str, Any]:
    """What every card of a bundle says of it."""
    problem, made = surrogate.problem, surrogate.provenance
    return {
        "model": surrogate.config.name,
        "problem": problem.name,
        "shape": " × ".join(map(str, problem.grid.shape)),
        "parameters": surrogate.num_parameters,
        "context": problem.num_context_frames,
        "frame_dt": problem.frame_dt,
        "megabytes": num_bytes / 1e6,
        "minutes": made["training_seconds"] / 60,
        "updates": made["updates"],
    }


def card(surrogate: Surrogate, found: dict[str, Any], hardware: str) -> str:
    field, far = found["relative_l2"], found["long"]
    return CARD.format(
        name=NAME,
        generate=GENERATE,
        **on_card(surrogate, found["bytes"]),
        hardware=hardware,
        error=field["relative_l2"],
        spread=field["standard_error"],
        final=field["relative_l2_final"],
        calls=far["calls"],
        finite="finite" if far["finite"] else "NOT finite",
        spectrum=100 * far["largest_deviation_up_to_wavenumber_16"],
        band=16,
        one=found["milliseconds"]["1"]["wall"],
    )


if __name__ == "__main__":
    main()
