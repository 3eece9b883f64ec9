"""Patch and stride of `fit`: what they are worth after equal training on one core, beside the numbers that choose them.

    python -m lab.analyses.chosen_spacing --out results/cpu/spacing.json

Each row is trained for the same time. Errors are means over the same physical times: frames 2, 4, … of the data.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from factformer import fit
from factformer.data.generate.simulated import simulate_splits
from factformer.evaluation.accuracy import evaluate
from factformer.evaluation.provenance import provenance, write_json
from factformer.pdes import find_pde
from factformer.training.experiment.spacing import measure
from lab.command_line import out_and_numbers

PROBLEMS = {"gray_scott": 64, "kolmogorov_flow": 64}
COMBINATIONS = ((1, 1), (2, 1), (1, 2), (2, 2))
HORIZON = 8
"""Frames of the data that are predicted."""
SIZES = {"model.dim": 48, "model.depth": 2, "model.heads": 4, "model.head_dim": 16, "model.kernel_dim": 32}


def main() -> None:
    options = out_and_numbers(__doc__, minutes=0.4, seeds=2)
    began = time.perf_counter()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for name, size in PROBLEMS.items():
        splits = simulate_splits(name, find_pde(name).presets["small"], {"train": 12, "test": 3}, (size,))[size]
        detail, increment = measure(splits["train"])
        for seed in range(options.seeds):
            for patch, stride in COMBINATIONS:
                settings = {
                    **SIZES,
                    "model.patch": patch,
                    "protocol.stride": stride,
                    "training.budget_minutes": options.minutes,
                    "training.seed": seed,
                }
                processor = time.process_time()
                surrogate = fit(splits["train"], progress=False, settings=settings)
                processor = time.process_time() - processor
                found = evaluate(
                    surrogate, splits["test"], num_frames=HORIZON // stride, num_starts=3, timing=False
                ).to_dict()["fields"]
                rows.append(
                    {
                        "problem": name,
                        "points": size,
                        "detail": detail,
                        "increment": increment,
                        "patch": patch,
                        "stride": stride,
                        "seed": seed,
                        "updates": surrogate.provenance["updates"],
                        "processor_seconds": processor,
                        "relative_l2": {field: even_frames(scores, stride) for field, scores in found.items()},
                    }
                )
                print(rows[-1], flush=True)
    made = provenance(seed=0, seconds=time.perf_counter() - began, device="cpu")
    write_json(
        options.out,
        {"analysis": "patch and stride", "minutes": options.minutes, "data_frames": HORIZON, "rows": rows, **made},
    )


def even_frames(scores: dict[str, Any], stride: int) -> float:
    """The mean error over frames 2, 4, … of the data."""
    errors = scores["relative_l2_per_frame"]
    chosen = errors[1::2] if stride == 1 else errors
    return float(sum(chosen) / len(chosen))


if __name__ == "__main__":
    main()
