"""Narrow networks on the fused kernels, under compute-sanitizer and without it.

    python -m lab.checks.narrow --out results/speed/narrow_h200.json
    python -m lab.checks.narrow --stages 32 16 --out -      one network: errors of each stage alone on its kernels

Every width and head in a process of its own: an illegal access takes its process with it. Errors of the kernels and
of the plain layers in bfloat16 are relative to the plain layers in single precision. Those without the tool are the
numbers to read, those under it say whether an access was out of bounds.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

from factformer import engine
from factformer.kernels._triton.limits import FULL, MEDIUM
from lab.checks.common import DEVICE, Step, in_single_precision, keep, options, relative

CASES = [(dim, head) for dim in (8, 16, 24, 32, 48) for head in (8, 16, 32)]
SHAPES = {"plane": (40, 36), "box": (12, 10, 8)}
TOOL = "compute-sanitizer"
SECONDS = 170.0
WORKERS = 4
"""Cases side by side: most of their time is compilation."""


def one(dim: int, head_dim: int) -> dict[str, Any]:
    """Errors of the kernels on small grids."""
    found: dict[str, Any] = {}
    sizes = {"dim": dim, "depth": 2, "heads": 2, "head_dim": head_dim, "kernel_dim": 16}
    for name, shape in SHAPES.items():
        for model in ("factformer", "factformer_plus"):
            step = {**sizes, "name": model}
            ours, plain = (Step(shape, 2, 2, step, mode=mode, optimizer=False).gradients() for mode in (None, "off"))
            exact = in_single_precision(shape, 2, 2, step)
            for way, got in (("kernels", ours), ("plain", plain)):
                pairs = zip(("prediction", "gradient"), got, exact, strict=True)
                found[f"{name}, {model}, {way}"] = {what: relative(a, b.to(a.device)) for what, a, b in pairs}
    return found


def by_stage(dim: int, head_dim: int) -> None:
    """Errors of a network of which one kind of stage runs on its kernels, with TMA and without."""
    sizes = {"dim": dim, "depth": 2, "heads": 2, "head_dim": head_dim, "kernel_dim": 16, "name": "factformer_plus"}
    for shape, (name, row), limits in product(SHAPES.values(), engine.TABLE.items(), (FULL, MEDIUM)):
        plain = Step(shape, 2, 2, sizes, mode="off", optimizer=False)
        ours = Step(shape, 2, 2, sizes, mode="off", optimizer=False)
        for part in ours.surrogate.modules():
            if type(part) is row.layer:
                engine.attach(part, "auto", limits=limits)
        errors = [relative(a, b) for a, b in zip(ours.gradients(), plain.gradients(), strict=True)]
        print(json.dumps({"shape": shape, "stage": name, "TMA": limits.tma, "errors": errors}), flush=True)


def run(dim: int, head_dim: int, *, tool: bool) -> dict[str, Any]:
    """The same in another process."""
    words = [sys.executable, "-m", "lab.checks.narrow", "--one", str(dim), str(head_dim), "--out", "-"]
    if tool:
        words = [TOOL, "--tool", "memcheck", "--error-exitcode", "9", *words]
    row: dict[str, Any] = {"dim": dim, "head_dim": head_dim, "tool": TOOL if tool else None}
    try:
        done = subprocess.run(words, capture_output=True, text=True, encoding="utf-8", timeout=SECONDS, env=os.environ)
    except subprocess.TimeoutExpired:
        return {**row, "status": f"not done after {SECONDS:.0f} s"}
    if done.returncode:
        return {**row, "status": f"exit {done.returncode}", "said": (done.stdout + done.stderr)[-3000:]}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return {**row, "status": "ok", "errors": json.loads(lines[-1]) if lines else None}


def main() -> int:
    chosen = options(
        __doc__,
        ("--one", {"nargs": 2, "type": int, "metavar": ("DIM", "HEAD")}),
        ("--stages", {"nargs": 2, "type": int, "metavar": ("DIM", "HEAD")}),
        ("--no-tool", {"action": "store_true"}),
    )
    if chosen.stages:
        by_stage(*chosen.stages)
        return 0
    if chosen.one:
        print(json.dumps(one(*chosen.one)), flush=True)
        return 0
    began, rows = time.perf_counter(), []
    cases = CASES[:1] if chosen.tiny else CASES
    with_tool = shutil.which(TOOL) is not None and DEVICE == "cuda" and not chosen.no_tool
    watched = cases[::4] if with_tool else []  # the tool is slow: the smallest, a middle and the largest
    with ThreadPoolExecutor(WORKERS) as pool:
        tasks = [pool.submit(run, *case, tool=True) for case in watched]
        tasks += [pool.submit(run, *case, tool=False) for case in cases]
        for task in tasks:
            rows.append(task.result())
            print(rows[-1], flush=True)
    keep(chosen.out, "narrow", began, rows=rows, tool_found=shutil.which(TOOL) is not None)
    return int(any(row["status"].startswith("exit") for row in rows))


if __name__ == "__main__":
    sys.exit(main())
