"""Surrogates with patches of 1, 2 and 4 points, trained on one grid and called on grids half and twice as fine.

    python -m lab.analyses.patch_transfer --out results/cpu/patch_transfer.json

Burgers' equation on 128 points of one axis, a minute each on one core. The errors are those of ten frames.
"""

from __future__ import annotations

import time

import torch

from factformer import fit
from factformer.data.generate.simulated import simulate_splits
from factformer.evaluation.accuracy import evaluate
from factformer.evaluation.provenance import provenance, write_json
from factformer.pdes import find_pde
from lab.command_line import out_and_numbers

HOME, GRIDS, PATCHES = 128, (64, 128, 256), (1, 2, 4)
SIZES = {"model.dim": 48, "model.depth": 2, "model.heads": 4, "model.head_dim": 16, "model.kernel_dim": 32}


def main() -> None:
    options = out_and_numbers(__doc__, updates=600, seed=0)
    began = time.perf_counter()
    torch.set_num_threads(1)
    preset = find_pde("burgers").presets["small"]
    splits = simulate_splits("burgers", preset, {"train": 48, "test": 8}, GRIDS)
    rows = []
    for patch in PATCHES:
        settings = {**SIZES, "model.patch": patch, "training.seed": options.seed}
        surrogate = fit(splits[HOME]["train"], updates=options.updates, progress=False, settings=settings)
        found = {
            size: evaluate(surrogate, splits[size]["test"], num_frames=10, timing=False).fields["velocity"].relative_l2
            for size in GRIDS
        }
        rows.append({"patch": patch, "trained_on": HOME, "relative_l2": {str(size): e for size, e in found.items()}})
        print(rows[-1])
    made = provenance(seed=options.seed, seconds=time.perf_counter() - began, device="cpu")
    write_json(options.out, {"analysis": "patch transfer", "updates": options.updates, "rows": rows, **made})


if __name__ == "__main__":
    main()
