"""One call of a surrogate on one core of a CPU: float32 and bfloat16, plain and compiled, without and with patches.

    python -m lab.analyses.cpu_call kolmogorov-128 --out results/cpu/call_kolmogorov-128.json

Seconds are those of the processor, the least of several calls, so that other work on the machine counts little. The
share of the peak is that of the rate of a large float32 product measured in the same process. The row with patches
has the sizes of the bundle and fresh weights: it tells the time alone.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

import factformer
from factformer import engine
from factformer.evaluation.cost import random_batch
from factformer.evaluation.provenance import provenance, write_json
from factformer.evaluation.timing import PRECISIONS, autocast
from factformer.surrogate import Surrogate

CPU = torch.device("cpu")
PRODUCT = 2048
"""Rows and columns of the product that stands for the peak."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--patch", type=int, default=2)
    parser.add_argument("--calls", type=int, default=5)
    options = parser.parse_args()
    began = time.perf_counter()
    torch.set_num_threads(1)
    a = torch.randn(PRODUCT, PRODUCT)
    peak = 2 * PRODUCT**3 / least_seconds(lambda: a @ a, options.calls)
    bundle = factformer.load(options.name)
    torch.manual_seed(0)
    patched = factformer.build_surrogate(
        bundle.problem, bundle.config.replace(patch=options.patch), marching_steps=bundle.marching_steps
    ).eval()
    rows = [row for one in (bundle, patched) for row in rows_of(one, peak, options.calls)]
    made = provenance(seed=0, seconds=time.perf_counter() - began, device=CPU)
    write_json(options.out, {"analysis": "call on one core", "peak_flops_per_second": peak, "rows": rows, **made})


def rows_of(surrogate: Surrogate, peak: float, calls: int) -> list[dict[str, Any]]:
    batch = random_batch(surrogate, 1, 1, torch.Generator().manual_seed(0))
    grid = surrogate.problem.grid
    engine.attach(surrogate, "off")
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        exact = surrogate.predict(batch, 1, grid)
    flops = counter.get_total_flops()
    rows = []
    for way, mode in (("plain", "off"), ("compiled", "compiled")):
        engine.attach(surrogate, mode)  # type: ignore[arg-type]
        for precision in PRECISIONS:
            with torch.no_grad(), autocast(CPU, precision):
                result = surrogate.predict(batch, 1, grid)
                seconds = least_seconds(lambda: surrogate.predict(batch, 1, grid), calls)
            change = (result - exact).norm() / (exact - batch.seen[:, -1:]).norm()
            rows.append(
                {
                    "patch": surrogate.config.patch,
                    "way": way,
                    "precision": precision,
                    "cpu_seconds": seconds,
                    "flops": flops,
                    "share_of_peak": flops / seconds / peak,
                    "change_of_the_increment": float(change),
                }
            )
            print(rows[-1], flush=True)
    return rows


def least_seconds(call: Callable[[], object], calls: int) -> float:
    """Seconds of the processor of the quickest call, after one that is not counted."""
    call()
    found = []
    for _ in range(calls):
        start = time.process_time()
        call()
        found.append(time.process_time() - start)
    return min(found)


if __name__ == "__main__":
    main()
