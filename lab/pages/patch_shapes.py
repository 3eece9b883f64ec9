"""The section of the research log on patches, levels and borders, from ``results/cpu/patch_shapes.json``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lab.pages.findings import markdown, paragraph, read_measured

NAMES = {
    "patch 1": "patch 1",
    "patch 1, two levels": "patch 1, `model.levels=2`",
    "patch 2": "patch 2",
    "patch 2, two levels": "patch 2, `model.levels=2`",
    "patch 2, two levels, depth 6": "patch 2, `model.levels=2`, 6 layers",
    "patch 2, depth 3": "patch 2, 3 layers",
    "patch 2, depth 6": "patch 2, 6 layers",
    "patch 2, borders": "patch 2, convolution of 3 points after the decoder",
    "patch 4": "patch 4",
    "patch 4, borders": "patch 4, convolution of 5 points after the decoder",
}


def patch_shapes() -> list[str]:
    """What shapes of the network reach after equal processor time, and what is seen of the patches."""
    result = read_measured("cpu/patch_shapes.json")
    rows = []
    for variant, name in NAMES.items():
        runs = [row for row in result["rows"] if row["variant"] == variant]
        if not runs:
            continue
        rows.append(
            [
                name,
                _listed(runs, "relative_l2", 3),
                _listed(runs, "updates", 0),
                _listed(runs, "milliseconds_per_frame", 1),
                *(_listed(runs, f"steps {when}", 2) for when in ("truth", "first frame", "one second", "end")),
            ]
        )
    columns = ["variant", "error", "updates", "ms a frame", "steps: truth", "first frame", "1 s", "12 s"]
    return [
        "## Patches, levels and borders",
        "",
        *paragraph(
            "A first look, too short to choose a recipe by: all of these networks are far from trained. Kolmogorov "
            "flow on 64² points, solved on 128²; 16 training flows of 48 frames; two frames of context, every "
            f"second frame; 48 channels, 4 layers; {60 * result['minutes']:.0f} s of processor time for each "
            "training on one thread. Errors of roll-outs over one second on 4 validation flows. Where there are "
            "two numbers, they are of seeds 0 and 1, a single one is of seed 0 (`results/cpu/patch_shapes.json`, "
            "`lab/analyses/patches/shapes.py`). Steps: the mean square difference of neighbours across borders of "
            "patches over that within patches."
        ),
        "",
        *markdown(columns, rows),
        "",
        *paragraph(
            "A coarse level inside the backbone makes updates and calls about a quarter cheaper, and was ahead "
            "after equal time. That is one seed and a short training, so `model.levels` is off by default and in "
            "no recipe; it has to be repeated with longer trainings and a second seed. Layers per level, patch 1 "
            "with levels, and other depths were not compared."
        ),
        "",
        *paragraph(
            "A convolution after the decoder that sees both sides of a border did not pay: fewer updates, a larger "
            "error, and blocks of four points as plain in the pictures after 100 calls as without it (one seed). "
            "It was taken out again. Patches show in networks that have had so little training: at patch 2 in the "
            "steps across borders, at patch 4 as blocks in the pictures. How a trained one fares is below."
        ),
        "",
        *long_rollouts(),
    ]


def long_rollouts() -> list[str]:
    """What 1,000 calls of the small bundle leave of the spectrum, and of its patches."""
    result = read_measured("cpu/long_rollouts.json")
    parts = result["steps_across_borders_over_steps_within"]
    highest = result["share_of_variance_at_wavenumber_32"]
    middle = result["wavenumber_16_over_14_to_18"]
    rows = [
        [name, f"{parts[name]:.3f}", f"{middle[name]:.3f}", f"{highest[name]:.1e}"]
        for name in ("truth", "first call", "last calls")
    ]
    early = max(abs(value - 1) for value in result["early_truth_over_truth"][:16])
    up_to_30 = max(abs(value - 1) for value in result["spectrum_over_truth"][:30])
    third = max(result["deviation_of_thirds_up_to_wavenumber_16"])
    return [
        "### Long roll-outs of the small bundle",
        "",
        *paragraph(
            f"`{result['bundle']}` (patch 2) from {result['flows']} flows that it has not seen, {result['calls']:,} "
            f"calls: {'all frames are finite' if result['finite'] else 'NOT all frames are finite'}. Its spectrum "
            f"at the end is within {100 * result['largest_deviation_up_to_wavenumber_16']:.0f} % of the truth up to "
            f"wavenumber 16, {100 * up_to_30:.0f} % up to 30 and {100 * result['largest_deviation']:.0f} % at 31, "
            "where the truth is the "
            "same flows, solved from 29 to 58 units of time. The first 10 units, which the card of the bundle "
            f"compares with, differ from that by up to {100 * early:.0f} % up to wavenumber 16: flows that settle. "
            f"Thirds of the truth differ from the whole of it by up to {100 * third:.0f} % there "
            "(`results/cpu/long_rollouts.json`, `lab/analyses/patches/long_rollouts.py`)."
        ),
        "",
        *markdown(["frames", "steps", "wavenumber 16 over its neighbours", "share of variance at wavenumber 32"], rows),
        "",
    ]


def _listed(runs: Sequence[dict[str, Any]], key: str, digits: int) -> str:
    return " / ".join(f"{row[key]:,.{digits}f}" if key in row else "–" for row in runs)
