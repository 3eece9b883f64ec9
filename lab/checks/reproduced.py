"""Targets of `factformer reproduce` on the paper's grids, every run equally long, as files that the pages read.

    python -m lab.checks.reproduced spectra kernels table4 --minutes 2.5 --work WORK --out results/paper/spectra.json

Several targets share their runs; each has a file of its own beside ``--out``. Without ``--minutes`` nothing is cut: for
targets of costs.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from factformer.evaluation.provenance import write_json
from factformer.studies import reproduce_target
from lab.checks.common import DEVICE, options


def main() -> int:
    chosen = options(
        __doc__,
        ("targets", {"nargs": "+"}),
        ("--work", {"type": Path, "required": True}),
        ("--minutes", {"type": float}),
    )
    cut = () if chosen.minutes is None else (f"training.budget_minutes={chosen.minutes:g}",)
    low = ("training.precision=bf16-mixed",) if cut and DEVICE == "cuda" else ()
    began = time.perf_counter()
    failed = False
    for target in chosen.targets:
        result = reproduce_target(
            target,
            scale="tiny" if chosen.tiny else "paper",
            out=chosen.work,
            device=DEVICE,
            assignments=[] if chosen.tiny else [*cut, *low],
            report=lambda text: print(f"[{time.perf_counter() - began:4.0f} s] {text}", flush=True),
        )
        settings = "".join(f" --set {text}" for text in (*cut, *low))
        command = f"factformer reproduce {target} --scale {result.scale}{settings}"
        write_json(chosen.out.with_stem(target), {**result.to_dict(), "command": command})
        print(result.markdown(), flush=True)
        failed = failed or result.failed
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
