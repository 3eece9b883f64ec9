"""Sections of the pages that come from one measurement each, and not from the result files of runs."""

from __future__ import annotations

import json
from typing import Any

from lab import ROOT
from lab.pages.findings import markdown, paragraph, read_measured, with_spread

CPU_BILL = "cpu/solver_kolmogorov-128.json"


def additions() -> list[str]:
    """What each addition of factformer_plus did in a short run on a CPU."""
    path = ROOT / "results" / "cpu" / "additions.json"
    result = json.loads(path.read_text(encoding="utf-8"))
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
        *paragraph(
            f"Kolmogorov flow at {size} × {size} points with the {settings['scale']} recipe: {effort} of training each "
            f"on {result['hardware']}, {settings['seeds']} seed. Training is far from converged, and differences as "
            f"small as ± mean nothing. Measured in `{path.relative_to(ROOT)}` by `{result['command']}`."
        ),
        "",
        *lines,
    ]


def screening() -> list[str]:
    """Ideas on small problems on a CPU, which decided what was worth a GPU's time."""
    result = read_measured("cpu/screening.json")
    lines = [
        "## On a CPU",
        "",
        "Short trainings of small models decided which ideas were tried above (`results/cpu/screening.json`).",
        "",
    ]
    for study in result["studies"]:
        second, far, rough = (key in study["rows"][0] for key in ("velocity", "far", "spectrum_error"))
        rows = [
            [
                ", ".join(f"`{text}`" if "=" in text else text for text in row["settings"]) or "–",
                f"{row['relative_l2']:.4f} ± {row['standard_error']:.4f}",
                *([f"{row['velocity']:.4f} ± {row['velocity_standard_error']:.4f}"] if second else []),
                *(
                    [
                        f"{row['far']['relative_l2_final']:.2f} ± {row['far']['standard_error_final']:.2f}",
                        f"{row['far']['correlation_time']:.2f}",
                        f"{row['far']['spectrum_error']:.3f}",
                    ]
                    if far
                    else []
                ),
                *([f"{row['spectrum_error']:.3f}"] if rough else []),
                f"{row['updates']:,}",
            ]
            for row in sorted(study["rows"], key=lambda row: row["relative_l2"])
        ]
        errors = ["density", "velocity"] if second else ["error"]
        errors += ["last of 64 frames", "correlated until", "spectrum"] if far else ["spectrum"] if rough else []
        lines += [
            f"### {study['title']}",
            "",
            f"{study['what'][0].upper()}{study['what'][1:]}.",
            "",
            *markdown(["settings", *errors, "updates"], rows),
            "",
        ]
    return lines


def divergence() -> list[str]:
    """What was behind the runs that diverged."""
    measured = read_measured("cpu/kernel_size.json")
    first, last = measured["rows"][0], measured["rows"][-1]
    squares = {row["bundle"]: row["sum_of_squares"] for row in measured["bundles"]["rows"]}
    return [
        "## Why runs diverged",
        "",
        *paragraph(
            "The heads are normalised, which removes the scale of the kernels from the result, so nothing limits that "
            "scale in training. In the paper's network for three-dimensional problems the values of a layer grew from "
            f"{max(first['rms_by_layer']):.0e} to {max(last['rms_by_layer']):.0e} in {last['update']} updates of Muon "
            "with learning rate 3e-3 (`results/cpu/kernel_size.json`). The sum of their squares over 64³ points then "
            "soon exceeds the range of float32, which ends at 3e38. In two bundles whose training did not diverge the "
            f"sum is {squares['kolmogorov-128']:.0e} (`kolmogorov-128`) and {squares['turbulence-60']:.0e} "
            "(`turbulence-60`). This is the likely cause of the diverged runs above and in the tables of turbulence "
            "and smoke. Since then a power of two keeps the kernels near one ([design](design.md)). All runs marked "
            "as diverged were made before that."
        ),
        "",
    ]


def disturbances() -> list[str]:
    """What was behind roll-outs that left the flow."""
    measured = read_measured("cpu/sensitivity.json")
    names = {"x0, x1": "along both axes", "x0": "along x0", "x1": "along x1", "nowhere": "everywhere the same"}
    rows = [[row["bundle"], *(f"{row['gain'][key]:.2f}" for key in names)] for row in measured["rows"]]
    boxes = ", ".join(_gains(name) for name in ("turbulence-60", "smoke-64"))
    return [
        "## Why roll-outs left the flow",
        "",
        *paragraph(
            "With one frame per call `kolmogorov-128` was accurate for sixteen frames and left the flow soon after. "
            "The first sign was stripes along the axes. Kernels are computed from means along axes, so an error in "
            f"these means feeds on itself. To measure this, noise of {measured['level']:.1%} is added to the context. "
            "The gain in the table is the size of the change in the next frame, divided by the size of the noise; the "
            "columns differ in how the noise varies in space (`results/cpu/sensitivity.json`, written by "
            "`python -m lab.analyses.sensitivity`)."
        ),
        "",
        *paragraph(
            "White noise averages out in the means (it was not tried at 128 points). Training noise that has a "
            "component on every mean brings the gains below one. A long pushforward also helps, at a higher error (see "
            "the rounds above). A gain acts once per call; with four frames per call it acts a quarter as often. Every "
            "row is one run at 128 points. At 64 points a run without noise stays with the flow as well "
            "([ablations](results.md#ablations))."
        ),
        "",
        *markdown(["kolmogorov-128, noise that varies", *names.values()], rows),
        "",
        f"In three dimensions the gains are lower, although training used no noise: {boxes}.",
        "",
    ]


def _gains(name: str) -> str:
    measured = read_measured(f"cpu/sensitivity_{name}.json")
    gains = measured["rows"][0]["gain"].values()
    return f"`{name}` {min(gains):.2f} to {max(gains):.2f} (`results/cpu/sensitivity_{name}.json`)"


def against_solver() -> list[str]:
    """What the solver that made the data needs for the same frames, on a CPU and on a GPU."""
    cpu, gpu, full = (
        read_measured(name)
        for name in (CPU_BILL, "speed/solver_kolmogorov-128_bf16_h200.json", "speed/solver_kolmogorov-128_h200.json")
    )
    surrogate = next(row for row in gpu["rows"] if row["method"].startswith("surrogate"))
    reference = next(row for row in gpu["rows"] if row["method"] == "solver (reference)")
    finest = max((row for row in gpu["rows"] if row["method"] == "solver (coarse)"), key=lambda row: row["resolution"])
    on_gpu = [
        ["surrogate, bfloat16", *_seconds_and_error(surrogate)],
        ["surrogate, float32", *_seconds_and_error(full["rows"][0])],
        ["solver that made the data, 512²", f"{reference['seconds']:#.3g}", "–"],
    ]
    equal = cpu["speedup_at_equal_error"]["bf16-mixed"]["stored frame"]["factor"]
    return [
        *paragraph(
            "Time and error of the surrogate `kolmogorov-128`, of the solver that made its data, and of the same "
            f"solver on other grids (`factformer benchmark solver`). The flows are new; {gpu['num_frames']} frames, "
            "one second, are predicted."
        ),
        "",
        f"{gpu['batch_size']} flows at once on {gpu['hardware']} (`results/speed/solver_kolmogorov-128_bf16_h200.json` "
        "and, for float32, `…-128_h200.json`):",
        "",
        *markdown(["method", "seconds", "vorticity"], on_gpu),
        "",
        *paragraph(
            f"The solver's coarse rows of that measurement are not shown. On {finest['resolution']}² points they had "
            f"an error of {finest['relative_l2']['vorticity']:.3f}, which the measurements below contradict on both "
            "machines."
        ),
        "",
        f"{cpu['batch_size']} flows at once on {cpu['hardware']} (`results/{CPU_BILL}`):",
        "",
        *solver_rows(cpu),
        "",
        *paragraph(
            f"On the GPU, in bfloat16, the surrogate is {reference['seconds'] / surrogate['seconds']:.1f} times as "
            "fast as the solver that made its data. On the CPU, in bfloat16, it takes "
            f"{1 / equal:.0f} times as long as the solver of the same error: this solver of a periodic box is fast. "
            "A surrogate pays off where steps of the solver are expensive, or where there is no solver."
        ),
    ]


def solver_rows(bill: dict[str, Any]) -> list[str]:
    """The table of a bill: the surrogate, and the solver from the stored frame and from the full state."""
    columns = ["method", "points per axis", "start", "step", "milliseconds", "vorticity"]
    return markdown(
        columns,
        [
            [
                row["method"] + (", bfloat16" if row["precision"] == "bf16-mixed" else ""),
                str(row["resolution"]),
                row["start"] or "–",
                f"{row['dt']:.3g}" if row["dt"] else "–",
                _milliseconds(row["seconds"]),
                "–" if row["error"] is None else f"{row['error']:.4f}",
            ]
            for row in bill["rows"]
        ],
    )


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:,.0f}" if seconds >= 0.1 else f"{1000 * seconds:.3g}"


def _seconds_and_error(row: dict[str, Any]) -> tuple[str, str]:
    return f"{row['seconds']:#.3g}", f"{row['relative_l2']['vorticity']:.4f}"


def darcy_points() -> list[str]:
    """What no model can know on a coarse grid, and what the solver makes of the same points."""
    measured = read_measured("cpu/darcy_points.json")
    solver = "solver on these nodes"

    def best(row: dict[str, dict[str, float]]) -> dict[str, float]:
        return min((scores for name, scores in row.items() if name != solver), key=lambda scores: scores["relative_l2"])

    rows = []
    for title, pick in (
        ("coefficient completed between these points, solved on the full grid", best),
        ("solver on these points", lambda row: row[solver]),
    ):
        scores = [pick(row) for row in measured["rows"].values()]
        rows.append([title, *(with_spread(one["relative_l2"], one["standard_error"]) for one in scores)])
    return [
        *paragraph(
            f"The solutions are computed on {measured['full_grid']}² points. A model sees the coefficient only at "
            "every s-th point of that grid, so it cannot know where an interface lies between two of them. For the "
            "first row the coefficient is completed between the points (the best of four ways) and the equation is "
            "solved again on the full grid. A model that has learnt what coefficients look like may come somewhat "
            "closer, but it cannot recover what it does not see. The second row is the solver on the coarse points "
            f"themselves, without a model ({measured['samples']} solutions, `python -m lab.analyses.darcy_points`)."
        ),
        "",
        *markdown(["points", *(f"{size}²" for size in measured["rows"])], rows),
        "",
    ]
