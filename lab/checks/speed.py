"""Our network's times now against those that are stored, cell by cell.

    python -m lab.checks.speed --out results/speed/model_now_h200.json
    python -m lab.checks.speed --all --out results/speed/model_now_h200.json     with the textbook's, as --compare does
    python -m lab.checks.speed --before .device-deps/before/src --out results/speed/model_beside_h200.json

The stored file is results/speed/model_h200.json. Ends with 1 where a cell is more than 2 % slower than there. Machines
differ by as much: with ``--before`` an earlier source (`lab.checks.losses` says how to unpack it) is measured on the
same machine, in turns with this one, and cells are held against its times.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from factformer.evaluation.baselines import COMPILED, EAGER, OURS
from factformer.evaluation.comparison import compare, settings
from lab import ROOT
from lab.checks.common import DEVICE, TINY, keep, options

STORED = ROOT / "results" / "speed" / "model_h200.json"
MODES, ALLOWED, ROUNDS = ("infer", "train"), 1.02, 3


CHILD = """
import json, sys
from dataclasses import replace
from factformer.evaluation.comparison import compare, contests
from factformer.evaluation.contenders import OURS
device, tiny = sys.argv[1], json.loads(sys.argv[2])
rows = contests()
if tiny:
    rows = [replace(row, shape=tuple(8 for _ in row.shape), batch=1, overrides=tiny) for row in rows]
print(json.dumps({row["label"]: row[OURS] for row in compare(rows, ways=[OURS], device=device)["rows"]}))
"""
"""Times by the source of the first edition, with its own names."""


def by_earlier(source: Path, tiny: bool) -> dict[str, dict[str, float]]:
    """Times of every case by an earlier source, in a process of its own."""
    words = [sys.executable, "-c", CHILD, DEVICE, json.dumps(TINY if tiny else None)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, encoding="utf-8")
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    found: dict[str, dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> int:
    chosen = options(__doc__, ("--all", {"action": "store_true"}), ("--before", {"type": Path, "default": None}))
    began = time.perf_counter()
    cases = settings()
    if chosen.tiny:
        cases = [replace(case, shape=tuple(8 for _ in case.shape), batch=1, overrides=TINY) for case in cases]
    ways = [OURS] if chosen.tiny or not chosen.all else [EAGER, COMPILED, OURS]
    tables, earlier = [], []
    for number in range(1 if chosen.tiny else ROUNDS):
        if chosen.before is not None:
            earlier.append(by_earlier(chosen.before, chosen.tiny))
        tables.append(compare(cases, ways=[OURS] if number else ways, device=DEVICE))
    if chosen.before is None:
        earlier = [{row["label"]: row[OURS] for row in json.loads(STORED.read_text(encoding="utf-8"))["rows"]}]
    rows, slower = [], []
    for place, row in enumerate(tables[0]["rows"]):
        runs, found = [table["rows"][place][OURS] for table in tables], {}
        for mode in MODES:
            values = sorted(run[f"{mode}_ms"] for run in runs)
            before = sorted(known[row["label"]][f"{mode}_ms"] for known in earlier)
            found[mode] = {"ms": values, "before_ms": before, "ratio": values[0] / before[0]}
            slower += [f"{row['label']} {mode}"] * (found[mode]["ratio"] > ALLOWED)
        rows.append({**row, "against": found})
        print(row["label"], {mode: round(values["ratio"], 3) for mode, values in found.items()}, flush=True)
    against = "stored" if chosen.before is None else "an earlier source on this machine"
    keep(chosen.out, "speed", began, against=against, rows=rows, slower=slower)
    print(f"slower than {ALLOWED} times: {', '.join(slower) or 'none'}")
    return int(bool(slower) and not chosen.tiny)


if __name__ == "__main__":
    sys.exit(main())
