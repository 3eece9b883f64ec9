"""Latency of one call of a surrogate on this machine: as it is, exported by torch.export, AOTInductor, ONNX Runtime.

    python benchmarks/export.py kolmogorov-128 --out results/cpu/export.json
    python benchmarks/export.py kolmogorov-128 --device cuda --out results/speed/export_h200.json

The ways take turns, so that their ratios hold on a busy machine too; the median of the rounds counts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import factformer
from factformer.errors import UserError
from factformer.evaluation.provenance import provenance, write_json
from factformer.export.exporting import export, fresh_batch, read_helper
from factformer.surrogate import Surrogate

WAYS = {"torch.export": ("torch", ".pt2"), "AOTInductor": ("aoti", ".pt2"), "ONNX Runtime": ("onnx", ".onnx")}


def calls(surrogate: Surrogate, folder: Path, batch_size: int, said: dict[str, Any]) -> dict[str, Callable[[], object]]:
    """A call by the name of each way; why a way is not there is put into ``said``.

    ONNX Runtime is measured on a CPU alone.
    """
    device = next(surrogate.parameters()).device
    steps = surrogate.marching_steps
    batch = fresh_batch(surrogate, batch_size, steps, seed=0)
    parts = {name: part for name, part in batch._asdict().items() if part is not None}

    def eager() -> object:
        with torch.no_grad():
            return surrogate(batch, steps)

    found: dict[str, Callable[[], object]] = {"eager": eager}
    for way, (format, ending) in WAYS.items():
        if format == "onnx" and device.type != "cpu":
            continue
        path = folder / f"{format}{ending}"
        about = folder / f"{format}.json"
        if not about.exists():
            try:
                done = export(surrogate, path, format, device=device)  # type: ignore[arg-type]
                write_json(about, {"error": done.error, "num_bytes": done.num_bytes})
            except UserError as error:
                write_json(about, {"status": str(error)})
        said[way] = json.loads(about.read_text(encoding="utf-8"))
        if "status" in said[way]:
            continue
        helper = read_helper(folder / f"{path.name.replace('.', '_')}_rollout.py")
        model = helper.load(path)
        given = {name: part.numpy() for name, part in parts.items()} if format == "onnx" else parts
        found[way] = lambda helper=helper, model=model, given=given: helper.rollout(model, steps, **given)
    return found


def measure(bundle: str, batch_sizes: list[int], rounds: int, device: str, keep: Path | None) -> dict[str, Any]:
    began = time.perf_counter()
    surrogate = factformer.load(bundle).to(device)
    rows, said = [], {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for size in batch_sizes:
            ways = calls(surrogate, folder, size, said)
            seconds: dict[str, list[float]] = {way: [] for way in ways}
            for number in range(rounds + 1):
                for way, call in ways.items():
                    start = time.perf_counter()
                    call()
                    if device != "cpu":
                        torch.cuda.synchronize()
                    if number:  # the first round fills caches
                        seconds[way].append(time.perf_counter() - start)
            eager = statistics.median(seconds["eager"])
            for way, values in seconds.items():
                median = statistics.median(values)
                rows.append({"way": way, "batch_size": size, "seconds": median, "speed_over_eager": eager / median})
                print(f"{way:<14} batch {size:<3} {median:8.4f} s  {eager / median:5.2f} times eager", flush=True)
    return {
        "benchmark": "export",
        "bundle": Path(bundle).name,
        "model": surrogate.config.name,
        "grid": list(surrogate.problem.grid.shape),
        "frames_per_call": surrogate.marching_steps,
        "rounds": rounds,
        "rows": rows,
        "exports": said,
        **provenance(seed=0, seconds=time.perf_counter() - began, device=device),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--keep", type=Path, default=None, help="folder of the exports; what is there is not made anew")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    write_json(options.out, measure(options.bundle, options.batch_sizes, options.rounds, options.device, options.keep))


if __name__ == "__main__":
    main()
