"""A bundle of the zoo on grids it was not trained on: convolutions that keep their reach in space, and in points.

    python -m lab.analyses.other_grids darcy-85 61 141 211 --trajectories 30
    python -m lab.analyses.other_grids kolmogorov-128 64 96 --trajectories 2 --set num_frames=27

Solutions are made here, with another seed than the training data. ``results/cpu/other_grids_NAME.json`` keeps the
numbers.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import factformer
from factformer.evaluation.accuracy import evaluate
from factformer.evaluation.provenance import provenance, write_json
from factformer.nn.convolution import Convolution
from lab import ROOT
from lab.analyses.new_solutions import new_solutions
from lab.campaign.record import short

FOLDER = ROOT / "results" / "cpu"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("sizes", type=int, nargs="+", help="points per axis")
    parser.add_argument("--trajectories", type=int, default=2)
    parser.add_argument("--seed", type=int, default=3, help="0 is that of the training data")
    parser.add_argument("--set", action="append", default=[], help="of the solver's preset, such as num_frames=27")
    options = parser.parse_args()
    began = time.perf_counter()
    surrogate = factformer.load(options.name)
    problem = surrogate.problem
    convolutions = [module for module in surrogate.modules() if isinstance(module, Convolution)]
    rows: dict[str, Any] = {}
    for size in options.sizes:
        with new_solutions(problem, options.trajectories, options.seed, options.set, size=size) as dataset:
            rows[str(size)] = {}
            for reach, home in (("space", problem.grid), ("points", None)):
                for convolution in convolutions:
                    convolution.home = home
                scores = short(evaluate(surrogate, dataset, num_starts=1, timing=False).to_dict())
                rows[str(size)][reach] = scores
                print(size, reach, {name: field["relative_l2"] for name, field in scores["fields"].items()}, flush=True)
    made = provenance(seed=options.seed, seconds=time.perf_counter() - began)
    what = "a bundle on grids it was not trained on"
    record = {"benchmark": what, "bundle": options.name, "rows": rows, **made}
    write_json(FOLDER / f"other_grids_{options.name}.json", record)


if __name__ == "__main__":
    main()
