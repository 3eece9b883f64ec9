"""What each addition of factformer_plus is worth: the same training with one switch turned back at a time.

    python -m lab.analyses.additions --updates 600                      a CPU, equal updates
    python -m lab.analyses.additions --minutes 1 --resolution 64 --scale paper --trajectories 100    a GPU, equal time
    python -m lab.analyses.additions --variants fno "fno, told where points lie"    what coordinates are worth to others

Every variant trains on the same Kolmogorov data with the same seeds; the table gives the relative L2 error of
16-frame roll-outs on unseen trajectories, averaged over seeds, and the seconds that training took.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from factformer.data.generate.run import generate
from factformer.data.store import open_dataset
from factformer.evaluation.accuracy import evaluate
from factformer.evaluation.provenance import provenance
from factformer.recipes.kolmogorov import experiment
from factformer.training.loop.train import train

PLUS = "factformer_plus"
VARIANTS: dict[str, tuple[str, list[str]]] = {
    "factformer": ("factformer", []),
    "factformer_plus": (PLUS, []),
    "no local branch": (PLUS, ["model.local_branch=false"]),
    "narrow feed-forward": (PLUS, ["model.feed_forward=1"]),
    "paper's rotary": (PLUS, ["model.rotary=paper"]),
    "paper's Fourier features": (PLUS, ["model.fourier=paper"]),
    "frames, not increments": (PLUS, ["model.residual=false"]),
}
OTHERS = {
    f"{model}{', told where points lie' * bool(switches)}": (model, switches)
    for model in ("fno", "ffno", "dilated_resnet")
    for switches in ([], ["model.fourier=periodic"])
}
"""Models of the paper that know no place, and with the positional encoding that the Transformers have."""


def measure(name: str, options: argparse.Namespace, data: Path, seed: int) -> dict[str, Any]:
    """Train one variant and roll it out on the test split."""
    model, switches = {**VARIANTS, **OTHERS}[name]
    budget = f"training.budget_minutes={options.minutes}" if options.minutes else f"training.updates={options.updates}"
    settings = [
        *switches,
        *options.set,
        budget,
        f"training.seed={seed}",
        f"data.path={data}",
        f"data.resolution={options.resolution}",
    ]
    # Additions are all trained alike, models of the paper as the paper does.
    recipe = experiment(options.scale, PLUS if name in VARIANTS else model)
    planned = recipe.override([f"model.name={model}", *settings])
    with tempfile.TemporaryDirectory() as folder:
        outcome = train(planned, open_dataset(data, "train"), folder=Path(folder) / "run")
    if outcome.surrogate is None:
        raise SystemExit(f"{name}: stopped before the end ({outcome.reason})")
    scores = evaluate(outcome.surrogate, open_dataset(data, "test"), timing=False).to_dict()["fields"]["vorticity"]
    return {
        "variant": name,
        "seed": seed,
        "relative_l2": scores["relative_l2"],
        "relative_l2_final": scores["relative_l2_final"],
        "standard_error": scores["standard_error"],
        "parameters": outcome.surrogate.num_parameters,
        "updates": outcome.update,
        "seconds": outcome.last["seconds"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", default="small", choices=["small", "paper"])
    parser.add_argument("--resolution", type=int, default=32)
    parser.add_argument("--trajectories", type=int, default=16)
    parser.add_argument("--updates", type=int, default=600)
    parser.add_argument("--minutes", type=float, default=None, help="train for equal time instead")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=[*VARIANTS, *OTHERS])
    parser.add_argument("--set", action="append", default=[], help="any key of the experiment, for all variants")
    parser.add_argument("--out", type=Path, default=None, help="write the rows as JSON")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        counts = {"train": options.trajectories, "test": max(4, options.trajectories // 5)}
        generate(
            "kolmogorov_flow",
            folder,
            splits=list(counts),
            trajectories=counts,
            resolution=options.resolution,
            simulation_resolution=2 * options.resolution,
            device=device,
        )
        rows = []
        for name in options.variants:
            for seed in range(options.seeds):
                rows.append(measure(name, options, Path(folder), seed))
                row = rows[-1]
                print(
                    f"{name:26s} seed {seed}  error {row['relative_l2']:.4f}  final {row['relative_l2_final']:.4f}  "
                    f"{row['updates']} updates  {row['seconds']:.0f} s",
                    flush=True,
                )
    if options.out:
        settings = {key: value for key, value in vars(options).items() if key != "out"}
        options.out.parent.mkdir(parents=True, exist_ok=True)
        origin = provenance(seed=0, seconds=time.perf_counter() - began, device=device)
        record = {"settings": settings, "rows": rows, **origin}
        options.out.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
