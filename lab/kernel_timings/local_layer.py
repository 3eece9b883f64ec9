"""The local branch of factformer_plus alone on a GPU: milliseconds per layer, forward, and forward with backward.

    python -m lab.kernel_timings.local_layer --out FILE            as it is used
    python -m lab.kernel_timings.local_layer --variants --out FILE  with other runs and tiles too

262,144 points in each case: 16 planes of 128², one box of 64³.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from factformer.evaluation.provenance import provenance, write_json
from factformer.kernels.local import neighbours
from factformer.kernels.local import op as local
from factformer.nn.local_branch import LocalBranch
from lab.kernel_timings.timed_calls import wall

DEVICE = "cuda"
DIM = 128
CASES = {
    "plane, kernel 5": ((128, 128), 16, 5),
    "plane, kernel 7": ((128, 128), 16, 7),
    "box, kernel 3": ((64, 64, 64), 1, 3),
}
VARIANTS: dict[str, list[dict[tuple[Any, str], int]]] = {
    "points per run": [{(neighbours, "RUN"): number} for number in (2, 8, 4)],
    "convolution: runs, warps": [
        {(local, "CONVOLVED_RUNS"): runs, (local, "CONVOLVED_WARPS"): warps}
        for runs, warps in ((16, 8), (16, 4), (4, 4), (8, 8), (8, 4))
    ],
    "weights: runs, warps": [
        {(local, "WEIGHED_RUNS"): runs, (local, "WEIGHED_WARPS"): warps}
        for runs, warps in ((16, 8), (16, 4), (4, 4), (8, 8), (8, 4))
    ],
}
"""Constants by module; the last of each list is what is used."""


def milliseconds(call: Callable[[], None], repeats: int) -> float:
    for _ in range(3):
        call()
    return wall(call, repeats)


def measure(shape: tuple[int, ...], batch: int, kernel: int, repeats: int) -> list[float]:
    torch.manual_seed(0)
    branch = LocalBranch(DIM, kernel, 2, ("periodic",) * len(shape)).to(DEVICE)
    field = torch.randn(batch, *shape, DIM, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
    grad = torch.randn_like(field)

    def forward() -> None:
        with torch.no_grad():
            local.local_block(branch, field, torch.bfloat16, None, None)

    def both() -> None:
        local.local_block(branch, field, torch.bfloat16, None, None).backward(grad)
        field.grad = None
        branch.zero_grad()

    return [round(milliseconds(call, repeats), 3) for call in (forward, both)]


def variants() -> Iterator[str]:
    """Names of variants, each chosen while the caller holds it."""
    yield "as it is"
    for label, choices in VARIANTS.items():
        for choice in choices:
            for (module, name), value in choice.items():
                setattr(module, name, value)
            yield f"{label} {', '.join(map(str, choice.values()))}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variants", action="store_true")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    began = time.monotonic()
    rows = {}
    for name in variants():
        rows[name] = {case: measure(*sizes, options.repeats) for case, sizes in CASES.items()}
        print(name, rows[name], flush=True)
        if not options.variants:
            break
    if options.out:
        result = {"benchmark": "local branch: ms forward, and forward with backward", "rows": rows}
        chosen = f"{' --variants' * options.variants} --repeats {options.repeats}"
        command = f"python -m lab.kernel_timings.local_layer{chosen}"
        result |= provenance(seed=0, seconds=time.monotonic() - began, device=DEVICE) | {"command": command}
        write_json(options.out, result)


if __name__ == "__main__":
    main()
