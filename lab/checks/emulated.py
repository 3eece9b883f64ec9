"""One model on one scenario of APEBench, in that benchmark's protocol and metric.

python -m lab.checks.emulated 2d_diff_ks factformer_plus --seed 0 --work WORK --out results/apebench/NAME.json
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from factformer.studies.apebench.scenarios import SCENARIOS
from factformer.studies.cells import Emulating
from factformer.studies.runner import Runner
from factformer.studies.study_folder import StudyFolder
from lab.checks.common import DEVICE, keep, options


def main() -> int:
    chosen = options(
        __doc__,
        ("scenario", {"choices": list(SCENARIOS)}),
        ("model", {}),
        ("--seed", {"type": int, "default": 0}),
        ("--work", {"type": Path, "required": True}),
    )
    began = time.perf_counter()
    runner = Runner(device=DEVICE, say=lambda text: print(text, flush=True))
    folder = StudyFolder(chosen.work, "tiny" if chosen.tiny else "paper", runner)
    done = folder.do(Emulating(chosen.scenario, chosen.model, chosen.seed))
    if done.result is None:
        print(done.status, flush=True)
        return 1
    known = SCENARIOS[chosen.scenario].read_off
    told = {"scenario": chosen.scenario, "model": chosen.model, "training_seed": chosen.seed, "status": done.status}
    keep(chosen.out, "emulated", began, **told, result=done.result, read_off_the_figure=known)
    print(f"{chosen.scenario}, {chosen.model}: {done.result['geometric_mean']:.4f}; others {known}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
