"""One call of a surrogate on a CPU: one flow, one frame, by number format, way of execution and number of threads.

    python -m lab.analyses.cpu_call kolmogorov-128 turbulence-60 --out results/cpu

writes ``call_NAME.json`` for each bundle. Rows hold seconds of the processor and of the clock, the least of several
calls; seconds of the clock mean something on an idle machine alone, those of the processor on a busy one too, if there
are spare caches. The first row of each number format is measured before freed memory is kept (`keep_freed_memory`), as
a program of one's own has it; all others after, as commands have it. The share of the peak is that of the best product
of matrices that was found on as many threads, in the same number format. Rows with ``--patch`` have the sizes of the
bundle and fresh weights: they tell the time alone.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

import factformer
from factformer import engine
from factformer._support.freed_memory import keep_freed_memory
from factformer.evaluation.cost import random_batch
from factformer.evaluation.provenance import provenance, write_json
from factformer.evaluation.timing import PRECISIONS, autocast
from factformer.kernels.blocked.products import by_onednn, linear
from factformer.surrogate import Surrogate

CPU = torch.device("cpu")
MODES: dict[str, engine.Mode] = {"plain": "off", "blocked": "blocked", "compiled": "compiled"}
PRODUCTS = ((2048, 2048, 2048), (16384, 128, 512), (16384, 512, 128), (8192, 128, 128))
"""Rows, columns in and columns out of products that compete for the peak."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--out", type=Path, required=True, help="a folder")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--ways", nargs="+", choices=tuple(MODES), default=list(MODES))
    parser.add_argument("--patch", type=int, help="also the sizes of the bundle with patches")
    parser.add_argument("--calls", type=int, default=5)
    options = parser.parse_args()
    for name in options.names:
        began = time.perf_counter()
        bundle = factformer.load(name)
        surrogates = [bundle]
        if options.patch:
            torch.manual_seed(0)
            config = bundle.config.replace(patch=options.patch)
            patched = factformer.build_surrogate(bundle.problem, config, marching_steps=bundle.marching_steps)
            surrogates.append(patched.eval())
        rows = []
        if name == options.names[0]:  # before freed memory is kept
            torch.set_num_threads(options.threads[0])
            rows += rows_of(bundle, ("plain",), "given back", {}, options.calls)
        assert keep_freed_memory()
        peaks = {}
        for threads in options.threads:
            torch.set_num_threads(threads)
            peaks[threads] = {precision: peak(precision, options.calls) for precision in PRECISIONS}
            for surrogate in surrogates:
                rows += rows_of(surrogate, options.ways, "kept", peaks[threads], options.calls)
        made = provenance(seed=0, seconds=time.perf_counter() - began, device=CPU)
        found = {"analysis": "call on a CPU", "peak_flops_per_second": peaks, "rows": rows, **made}
        write_json(options.out / f"call_{name}.json", found)


def peak(precision: str, calls: int) -> dict[str, float]:
    """Floating-point operations a second of the best product, by PyTorch's own function and by oneDNN's."""
    dtype = torch.bfloat16 if "bf16" in precision else torch.float32
    found: dict[str, float] = {}
    with torch.no_grad():
        for rows, dim_in, dim_out in PRODUCTS:
            x, weight = torch.randn(rows, dim_in).to(dtype), torch.randn(dim_out, dim_in).to(dtype)
            ways: dict[str, Callable[..., Tensor]] = {"torch": functional.linear}
            if by_onednn():
                ways["onednn"] = linear
            for way, product in ways.items():
                seconds, _ = least_seconds(functools.partial(product, x, weight), 2 * calls + 1)
                rate = 2 * rows * dim_in * dim_out / seconds * torch.get_num_threads()
                found[way] = max(found.get(way, 0.0), rate)
    return found


def rows_of(
    surrogate: Surrogate, ways: Sequence[str], memory: str, peaks: dict[str, dict[str, float]], calls: int
) -> list[dict[str, Any]]:
    batch = random_batch(surrogate, 1, 1, torch.Generator().manual_seed(0))
    grid = surrogate.problem.grid
    engine.attach(surrogate, "off")
    with torch.no_grad():
        exact = surrogate.predict(batch, 1, grid)  # makes the tables of the grid, which the next call does not count
        with FlopCounterMode(display=False) as counter:
            surrogate.predict(batch, 1, grid)
    flops = counter.get_total_flops()
    moved = exact if batch.context is None else exact - batch.context[:, -1:]
    rows = []
    for way in ways:
        engine.attach(surrogate, MODES[way])
        for precision in PRECISIONS:
            with torch.no_grad(), autocast(CPU, precision):
                result = surrogate.predict(batch, 1, grid)
                of_processor, of_clock = least_seconds(lambda: surrogate.predict(batch, 1, grid), calls)
            best = max(peaks[precision].values()) if peaks else None
            row = {
                "patch": surrogate.config.patch,
                "way": way,
                "precision": precision,
                "threads": torch.get_num_threads(),
                "freed_memory": memory,
                "cpu_seconds": of_processor,
                "wall_seconds": of_clock,
                "flops": flops,
                "share_of_peak": None if best is None else flops / of_processor / best * torch.get_num_threads(),
                "change_of_the_increment": float((result - exact).norm() / moved.norm()),
            }
            print(row, flush=True)
            rows.append(row)
    return rows


def least_seconds(call: Callable[[], object], calls: int) -> tuple[float, float]:
    """Seconds of the processor and of the clock of the quickest call."""
    of_processor, of_clock = [], []
    for _ in range(calls):
        start, started = time.process_time(), time.perf_counter()
        call()
        of_processor.append(time.process_time() - start)
        of_clock.append(time.perf_counter() - started)
    return min(of_processor), min(of_clock)


if __name__ == "__main__":
    main()
