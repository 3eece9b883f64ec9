"""Our network's times now against those that are stored, cell by cell.

    python -m lab.checks.speed --out results/speed/model_now_h200.json
    python -m lab.checks.speed --all --out results/speed/model_now_h200.json     with the textbook's, as --compare does

The stored file is results/speed/model_h200.json. Ends with 1 where a cell is more than 2 % slower than there.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace

from factformer.evaluation.baselines import COMPILED, EAGER, OURS
from factformer.evaluation.comparison import compare, settings
from lab import ROOT
from lab.checks.common import DEVICE, TINY, keep, options

STORED = ROOT / "results" / "speed" / "model_h200.json"
MODES, ALLOWED, ROUNDS = ("infer", "train"), 1.02, 3


def main() -> int:
    chosen, began = options(__doc__, ("--all", {"action": "store_true"})), time.perf_counter()
    known = {row["label"]: row[OURS] for row in json.loads(STORED.read_text(encoding="utf-8"))["rows"]}
    cases = settings()
    if chosen.tiny:
        cases = [replace(case, shape=tuple(8 for _ in case.shape), batch=1, overrides=TINY) for case in cases]
    ways = [OURS] if chosen.tiny or not chosen.all else [EAGER, COMPILED, OURS]
    table = compare(cases, ways=ways, device=DEVICE)
    again = [compare(cases, ways=[OURS], device=DEVICE) for _ in range(1 if chosen.tiny else ROUNDS - 1)]
    rows, slower = [], []
    for place, row in enumerate(table["rows"]):
        runs = [row[OURS], *(other["rows"][place][OURS] for other in again)]
        found = {}
        for mode in MODES:
            values = sorted(run[f"{mode}_ms"] for run in runs)
            ratio = values[0] / known[row["label"]][f"{mode}_ms"]
            found[mode] = {"ms": values, "stored_ms": known[row["label"]][f"{mode}_ms"], "ratio": ratio}
            slower += [f"{row['label']} {mode}"] * (ratio > ALLOWED)
        rows.append({**row, "against_stored": found})
        print(row["label"], {mode: round(values["ratio"], 3) for mode, values in found.items()}, flush=True)
    keep(chosen.out, "speed", began, rows=rows, slower=slower)
    print(f"slower than {ALLOWED} times: {', '.join(slower) or 'none'}")
    return int(bool(slower) and not chosen.tiny)


if __name__ == "__main__":
    sys.exit(main())
