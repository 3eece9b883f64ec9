"""One surrogate of Kolmogorov flow over a range of Reynolds numbers, against specialists for one number each.

    make() { factformer generate kolmogorov_flow --preset reynolds --resolution 64 --simulation-resolution 192 \\
        --batch-size 2 --set parameters.dt=0.0105 "$@"; }
    make --out data/range --split train --trajectories 100 --set num_frames=40
    make --out data/range --split valid --trajectories 8 --set num_frames=40
    make --out data/range --split test --trajectories 32 --set num_frames=20
    make --out data/300 --split train --trajectories 100 --set num_frames=40 --set parameters.reynolds=300
    make --out data/300 --split valid --trajectories 8 --set num_frames=40 --set parameters.reynolds=300
    make --out data/300 --split test --trajectories 16 --set num_frames=20 --set parameters.reynolds=300

and likewise for the other Reynolds numbers. Each flow has its own forcing wavenumber, 4 to 10, those of the
specialists too. Both kinds are trained by `TRAIN`, with as many trajectories and updates.

    python -m lab.parameters.reynolds --runs runs --data data --specialists 300 --unseen 300 1500 --outside 100 4000

The run of the range is stored as the bundle `kolmogorov-reynolds-small` of the zoo, in float16. The numbers are of
that bundle, those of the specialists of their runs; they go to results/cpu and to the bundle's card.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import factformer
from factformer.bundle import load, save_bundle
from factformer.data.store import StoredDataset, open_dataset
from factformer.evaluation.accuracy import evaluate
from factformer.evaluation.provenance import provenance, write_json
from factformer.surrogate import Surrogate
from factformer.zoo.index import CARD as CARD_FILE
from factformer.zoo.index import DESCRIPTION, WEIGHTS
from lab import ROOT
from lab.analyses.small_bundle import milliseconds, on_card

NAME = "kolmogorov-reynolds-small"
RESULT = f"results/cpu/{NAME}.json"
FIELD, RANGE = "vorticity", "range"
TRAIN = (
    "factformer train kolmogorov_reynolds --data data/range --out runs/range --set model.patch=2 --set model.depth=3 "
    "--set protocol.stride=2 --set data.num_context_frames=2 --set training.updates={updates}"
)
GENERATE = (
    "factformer generate kolmogorov_flow --preset reynolds --resolution 64 --simulation-resolution 192 --batch-size 2 "
    "--set parameters.dt=0.0105 --set num_frames=40 --split train --trajectories 100"
)
BANDS = (200.0, 431.0, 928.0, 2000.0)
"""Reynolds numbers that part the range into thirds on a log scale."""
CARD = """# {name}

`{model}` for `{problem}` on {shape} points, {parameters:,} parameters. For CPUs.

    surrogate = factformer.load("{name}")

| | |
|---|---|
| task | {context} frames at intervals of {frame_dt:g}, the Reynolds number and the forcing wavenumber in, one frame per call out, vorticity in physical units |
| size | {megabytes:.2f} MB, stored in float16 |
| data | 100 training flows of 40 frames, 1/16 apart: `{generate}` |
| training | {minutes:.0f} minutes on {hardware}, shared with other work; {updates:,} updates; seed {seed} |
| recipe | `{train}` |
| error, vorticity | relative L2 {error[relative_l2]:.4f} ± {error[standard_error]:.4f} over one second of {error[flows]} new flows, at its end {error[final]:.4f}; last frame repeated {error[persistence]:.3f} |
| error by Reynolds number | {bands} |
| error over that of a specialist | {ratios} |
| error at one Reynolds number | {unseen} |
| outside the range | one line says so; error {outside} |
| processor time | {milliseconds:.1f} ms a call on one thread |
| measured in | `{result}` |

Limits: drag 0.1, Reynolds numbers of {low:.0f} to {high:.0f} and forcing wavenumbers of 4 to 10. Small data and a short training:
this bundle shows parameters at work, `kolmogorov-64-small` is more accurate at its one Reynolds number. One training
run; ± is the standard error over flows.
"""  # noqa: E501


def errors(surrogate: Surrogate, dataset: StoredDataset) -> tuple[dict[str, Any], NDArray[Any]]:
    """A summary of the errors on all flows, and the error of each."""
    found = evaluate(surrogate, dataset, timing=False)
    field, table = found.fields[FIELD], found.trajectories
    assert table is not None
    each = np.array(table.relative_l2[FIELD], dtype=float)
    summary = {
        "flows": len(each),
        "frames": found.num_frames,
        "relative_l2": float(each.mean()),
        "standard_error": float(each.std(ddof=1) / len(each) ** 0.5),
        "final": field.relative_l2_final,
        "persistence": field.persistence.relative_l2,
    }
    return summary, each


def of_bands(each: NDArray[Any], reynolds: NDArray[Any]) -> list[dict[str, Any]]:
    rows = []
    for low, high in itertools.pairwise(BANDS):
        chosen = each[(reynolds >= low) & (reynolds < high)]
        spread = float(chosen.std(ddof=1) / len(chosen) ** 0.5)
        rows.append(
            {"from": low, "to": high, "flows": len(chosen), "relative_l2": float(chosen.mean()), "error": spread}
        )
    return rows


def against(surrogate: Surrogate, specialist: Surrogate, dataset: StoredDataset, reynolds: float) -> dict[str, Any]:
    """Errors of both on the same flows; the ratio's standard error is that of the paired differences."""
    ours, each = errors(surrogate, dataset)
    theirs, their_each = errors(specialist, dataset_of(specialist, dataset))
    ratio = ours["relative_l2"] / theirs["relative_l2"]
    spread = (each - ratio * their_each).std(ddof=1) / len(each) ** 0.5 / theirs["relative_l2"]
    updates = specialist.provenance["updates"]
    if updates != surrogate.provenance["updates"]:
        raise SystemExit(f"the specialist of Re {reynolds:g} had {updates} updates, the other one not as many")
    return {"reynolds": reynolds, "surrogate": ours, "specialist": theirs, "ratio": ratio, "ratio_error": float(spread)}


def dataset_of(surrogate: Surrogate, dataset: StoredDataset) -> StoredDataset:
    """The same flows with the parameters that ``surrogate`` knows: a Reynolds number that is fixed is none."""
    return open_dataset(dataset.path, parameters=surrogate.problem.parameters)


class Lines(logging.Handler):
    """Keeps the lines that are logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def beyond(surrogate: Surrogate, dataset: StoredDataset, reynolds: float) -> dict[str, Any]:
    """The error at a Reynolds number outside of the range, and what is said about that."""
    handler, logger = Lines(), logging.getLogger("factformer")
    logger.addHandler(handler)
    found, _ = errors(surrogate, dataset)
    logger.removeHandler(handler)
    return {"reynolds": reynolds, **found, "said": handler.lines}


def stored(run: Path, folder: Path) -> Surrogate:
    """The surrogate of a run as the bundle in ``folder``, with the command of this page instead of one with paths."""
    trained = load(run)
    made_by = {**trained.provenance, "command": TRAIN.format(updates=trained.provenance["updates"])}
    save_bundle(trained, folder, made_by, storage=torch.float16, overwrite=True)
    return factformer.load(folder).eval()


def card(surrogate: Surrogate, found: dict[str, Any], num_bytes: int) -> str:
    made_by = surrogate.provenance
    low, high = surrogate.normalizer.parameters_min, surrogate.normalizer.parameters_max
    assert low is not None and high is not None
    place = surrogate.problem.parameters.index("reynolds")
    bands = [f"{r['from']:.0f} to {r['to']:.0f}: {r['relative_l2']:.4f} ± {r['error']:.4f}" for r in found["bands"]]
    ratios = [
        f"{r['ratio']:.2f} ± {r['ratio_error']:.2f} at Re {r['reynolds']:g} ({r['surrogate']['relative_l2']:.4f} over "
        f"{r['specialist']['relative_l2']:.4f})"
        for r in found["specialists"]
    ]
    return CARD.format(
        name=NAME,
        **on_card(surrogate, num_bytes),
        generate=GENERATE,
        hardware=found["hardware"],
        seed=made_by["seed"],
        train=TRAIN.format(updates=made_by["updates"]),
        error=found["range"],
        bands="; ".join(bands),
        ratios="; ".join(ratios) or "not measured",
        unseen=", ".join(
            f"{r['relative_l2']:.4f} ± {r['standard_error']:.4f} at Re {r['reynolds']:g}" for r in found["unseen"]
        ),
        outside=", ".join(f"{r['relative_l2']:.4f} at Re {r['reynolds']:g}" for r in found["outside"]),
        milliseconds=found["milliseconds"]["processor"],
        result=RESULT,
        low=float(low[place]),
        high=float(high[place]),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--specialists", type=float, nargs="*", default=[])
    parser.add_argument("--unseen", type=float, nargs="*", default=[], help="Reynolds numbers inside the range")
    parser.add_argument("--outside", type=float, nargs="*", default=[])
    options = parser.parse_args()
    torch.set_num_threads(1)
    began = time.perf_counter()
    folder = ROOT / "zoo" / NAME
    surrogate = stored(options.runs / RANGE, folder)
    names = surrogate.problem.parameters

    def test_flows(name: str) -> StoredDataset:
        return open_dataset(options.data / name, "test", parameters=names)

    flows = test_flows(RANGE)
    summary, each = errors(surrogate, flows)
    reynolds = flows.read(slice(None), part="parameters")[:, names.index("reynolds")].numpy()
    print(summary, flush=True)
    rows = []
    for number in options.specialists:
        specialist = load(options.runs / f"{number:g}").eval()
        rows.append(against(surrogate, specialist, test_flows(f"{number:g}"), number))
        print(rows[-1], flush=True)
    unseen = [{"reynolds": number, **errors(surrogate, test_flows(f"{number:g}"))[0]} for number in options.unseen]
    outside = [beyond(surrogate, test_flows(f"{number:g}"), number) for number in options.outside]
    found = {
        "benchmark": __doc__.split("\n")[0],
        "bundle": f"{NAME}, stored in float16",
        "training": {"updates": surrogate.provenance["updates"], "seconds": surrogate.provenance["training_seconds"]},
        "range": summary,
        "bands": of_bands(each, reynolds),
        "flows": {"reynolds": reynolds.tolist(), "relative_l2": each.tolist()},
        "specialists": rows,
        "unseen": unseen,
        "outside": outside,
        "milliseconds": milliseconds(surrogate, flows, 1),
        **provenance(seed=0, seconds=time.perf_counter() - began, device=torch.device("cpu")),
    }
    write_json(ROOT / RESULT, found)
    num_bytes = sum(file.stat().st_size for file in folder.iterdir() if file.name in (WEIGHTS, DESCRIPTION))
    (folder / CARD_FILE).write_text(card(surrogate, found, num_bytes), encoding="utf-8")


if __name__ == "__main__":
    main()
