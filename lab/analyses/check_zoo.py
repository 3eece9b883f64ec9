"""A bundle of the zoo on solutions that are made anew here, with another seed: does it score as its card says?

    python -m lab.analyses.check_zoo darcy-85 --trajectories 20
    python -m lab.analyses.check_zoo kolmogorov-128 --trajectories 3 --starts 2 --set num_frames=42
    python -m lab.analyses.check_zoo kolmogorov-128 --trajectories 4 --frames 64 --set num_frames=74

The solver is that of the training data; on a CPU a flow takes minutes. ``results/NAME/storage.json`` keeps the numbers;
with ``--frames``, for roll-outs longer than the problem asks for, ``beyond`` in the file of the bundle's run.
"""

from __future__ import annotations

import argparse
import json
import time

import factformer
from factformer.evaluation.accuracy import evaluate
from factformer.evaluation.provenance import provenance, write_json
from lab import ROOT
from lab.analyses.new_solutions import new_solutions
from lab.campaign.record import beyond
from lab.pages.cards import run_of
from lab.pages.findings import read_findings

RESULTS = ROOT / "results"
KEPT = ("relative_l2", "standard_error", "relative_l2_final")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("--trajectories", type=int, default=2)
    parser.add_argument("--starts", type=int, default=1, help="windows of each trajectory")
    parser.add_argument("--frames", type=int, default=None, help="longer roll-outs than the problem asks for")
    parser.add_argument("--seed", type=int, default=1, help="0 is that of the training data")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--set", action="append", default=[], help="of the solver's preset, such as num_frames=42")
    options = parser.parse_args()
    began = time.perf_counter()
    surrogate = factformer.load(options.name).to(options.device)
    problem = surrogate.problem
    with new_solutions(problem, options.trajectories, options.seed, options.set, device=options.device) as dataset:
        scores = evaluate(surrogate, dataset, num_frames=options.frames, num_starts=options.starts, timing=False)
        scores = scores.to_dict()
    made = provenance(seed=options.seed, seconds=time.perf_counter() - began, device=options.device)
    if options.frames:
        finding = run_of(surrogate.provenance, read_findings(RESULTS))
        if finding is None:
            raise SystemExit(f"no result file of the run that {options.name} comes from")
        far = beyond(scores) | {"bundle": f"{options.name}, stored in float16", **made}
        write_json(
            RESULTS / finding.path, {**json.loads((RESULTS / finding.path).read_text(encoding="utf-8")), "beyond": far}
        )
        print(json.dumps({name: field["relative_l2_per_frame"] for name, field in far["fields"].items()}))
        return
    fields = {name: {key: field[key] for key in KEPT if key in field} for name, field in scores["fields"].items()}
    for name, field in fields.items():
        print(f"{name}: {field['relative_l2']:.4f} ± {field['standard_error']:.4f}")
    record = {
        "what": "the stored float16 bundle on solutions made anew with another seed, in float32",
        "results": {
            **fields,
            "dataset_fingerprint": dataset.fingerprint,
            "num_trajectories": options.trajectories,
            "num_starts": options.starts,
        },
        **made,
    }
    write_json(RESULTS / options.name / "storage.json", record)


if __name__ == "__main__":
    main()
