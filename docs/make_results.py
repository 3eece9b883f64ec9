"""Write docs/results.md from the files under results/: no number on that page is typed by hand.

    python docs/make_results.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from factformer.report.paper import TABLE_1, TABLE_4

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "results.md"


def read(pattern: str) -> list[tuple[str, dict[str, Any]]]:
    """Result files by their path below the repository."""
    files = sorted((ROOT / "results").glob(pattern))
    return [(str(file.relative_to(ROOT)), json.loads(file.read_text(encoding="utf-8"))) for file in files]


def trained_models() -> list[str]:
    """One row per trained and evaluated model."""
    lines = [
        "| problem | model | training | error | last frame | persistence | file |",
        "|---|---|---|---|---|---|---|",
    ]
    for path, result in read("*/*min*.json"):
        training = result["training"]
        effort = (
            f"{training['training_seconds'] / 60:.1f} min on {result['hardware']}, {training['updates']:,} updates, "
            f"seed {training['seed']}"
        )
        shape = " × ".join(str(size) for size in result["grid"])
        for field, errors in result["fields"].items():
            lines.append(
                f"| {result['problem']}, {shape}, {field} | `{result['model']}` | {effort} "
                f"| {errors['relative_l2']:.4f} ± {errors['standard_error']:.4f} | {errors['relative_l2_final']:.4f} "
                f"| {errors['persistence']['relative_l2']:.4f} | `{path}` |"
            )
    return lines


def additions() -> list[str]:
    """What each addition of factformer_plus did in a short run."""
    ((path, result),) = read("cpu/additions.json")
    settings = result["settings"]
    effort = f"{settings['minutes']} minutes" if settings["minutes"] else f"{settings['updates']} updates"
    lines = ["| variant | relative error | last frame | updates |", "|---|---|---|---|"]
    for row in result["rows"]:
        lines.append(
            f"| {row['variant']} | {row['relative_l2']:.3f} ± {row['standard_error']:.3f} "
            f"| {row['relative_l2_final']:.3f} | {row['updates']} |"
        )
    size = settings["resolution"]
    return [
        f"Kolmogorov flow at {size} × {size}, the {settings['scale']} recipe, {effort} of training each on "
        f"{result['hardware']},",
        f"{settings['seeds']} seed: far from converged, and differences of the size of ± mean nothing. `{path}`,",
        f"`{result['command']}`.",
        "",
        *lines,
    ]


def page() -> str:
    """The whole page."""
    fine, _ = TABLE_1.find("factformer", "latent_marching").errors["vorticity"]
    coarse = TABLE_4[0].relative_l2
    parts = [
        "# Results",
        "",
        "Made by `docs/make_results.py` from the files under `results/`, each with command, commit, hardware, seed and",
        "wall time. Errors are relative L2 norms over the predicted sequence, averaged over test windows; ± is the",
        "standard error over test trajectories.",
        "",
        "## Trained models",
        "",
        *trained_models(),
        "",
        f"The paper reports {fine} for FactFormer with latent marching on 256 × 256 points and {coarse} on",
        "128 × 128, after 100,000 updates and on its own data: another test set, and a training many times as long.",
        "The rows above are single runs. A comparison of all models at equal cost has not been run yet:",
        "`factformer reproduce` is the machinery for it, and every cell it has not filled says `not run`.",
        "",
        "## Additions of factformer_plus",
        "",
        *additions(),
        "",
        "Speed: [on a GPU](performance.md), [of the solvers](data.md#speed).",
        "",
    ]
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
