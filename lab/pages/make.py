"""Write every page of results from the files under results/: no number on them is typed by hand.

    python -m lab.pages.make [--picture]

Writes docs/results.md, docs/research-log.md, the block of results in README.md, the cards of the zoo and the figure
of the resolution study; with ``--picture`` also the README's animation, from a flow that is simulated for it.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

from factformer.bundle import load
from factformer.demo import show_bundle
from factformer.report.animation import write_animation
from factformer.report.paper import TABLE_1, TABLE_4
from factformer.report.planes import components
from factformer.report.runs import read_rollouts
from lab import ROOT
from lab.campaign.groups import GROUPS
from lab.pages import resolutions, sections
from lab.pages.cards import leaves, run_of, write_cards
from lab.pages.findings import Finding, markdown, read_findings, with_spread

FIGURE = ROOT / "docs" / "images" / "darcy-resolutions.png"
BLOCK = re.compile(r"(<!-- results -->\n).*?(<!-- end of results -->)", re.DOTALL)
PICTURED = "kolmogorov-128"
CONDITIONS = """\
- **The models of the paper** train as the paper says: AdamW and one cycle for the Transformers, Adam from 5e-4
  to 5e-6 for the others, its batch, its curriculum and pushforward, its unrolled steps where they are
  autoregressive.
- **`factformer_plus`** is ours and trains with its own recipe, which was chosen by short runs, the first of them
  judged by the test flows of the Kolmogorov table ([research log](research-log.md)). Part of it, where a table
  says so, is that one call predicts fewer frames: it learns more per second of training so, and needs more
  calls for as many frames.
- **± is over test solutions** of one trained model. Another seed moves an error, too, and for `factformer` by several
  times as much (the three seeds under Ablations): rows that lie close together may change places.
- **Time** is that of training steps, without the first one, which compiles. Products of matrices are in
  bfloat16 in training and in float32 in evaluation. Encoder, marching and decoder run on the same fused
  kernels for every model; the layers between them are our kernels for `factformer` and `factformer_plus` and
  PyTorch's operations for the others, so that part of a difference in updates is due to that. Runs of
  one table were made at different commits, between which some kernels became faster; each file names its own.
- **Coordinates.** `fno`, `ffno` and `dilated_resnet` are not told where a point lies, the Transformers are: the
  paper says nothing of coordinates for its baselines ([models](models.md) has what they are worth).
- **Windows** hold the frames of the longest update in training: with four frames per call and two pushed ones a
  window of smoke begins in one of the first 5 of 20 frames, with one frame per call in one of 14."""


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
        f"Kolmogorov flow at {size} × {size}, the {settings['scale']} recipe, {effort} of training each on "
        f"{result['hardware']},",
        f"{settings['seeds']} seed: far from converged, and differences of the size of ± mean nothing. "
        f"`{path.relative_to(ROOT)}`,",
        f"`{result['command']}`.",
        "",
        *lines,
    ]


def screening() -> list[str]:
    """Ideas on small problems on a CPU, which decided what was worth a GPU's time."""
    result = json.loads((ROOT / "results" / "cpu" / "screening.json").read_text(encoding="utf-8"))
    lines = [
        "## On a CPU",
        "",
        "Small models and short trainings, to choose what is tried above (`results/cpu/screening.json`).",
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
    measured = json.loads((ROOT / "results" / "cpu" / "kernel_size.json").read_text(encoding="utf-8"))
    first, last = measured["rows"][0], measured["rows"][-1]
    squares = {row["bundle"]: row["sum_of_squares"] for row in measured["bundles"]["rows"]}
    return [
        "## Why runs diverged",
        "",
        "The normalisation of the heads removes the size of the kernels, so that nothing holds it in training. In the",
        f"paper's network for boxes a layer's values grew from {max(first['rms_by_layer']):.0e} to "
        f"{max(last['rms_by_layer']):.0e} in {last['update']} updates of Muon",
        "at 3e-3 (`results/cpu/kernel_size.json`), and the sum of their squares over 64³ points leaves float32, which",
        f"ends at 3e38, soon after. In bundles that came through it is {squares['kolmogorov-128']:.0e} in "
        f"`kolmogorov-128` and {squares['turbulence-60']:.0e}",
        "in `turbulence-60`. This is the likely cause of the runs that went back, above and in the tables of the",
        "boxes. Since then a power of two keeps the kernels near one ([design](design.md)); runs that say they",
        "diverged were made before.",
        "",
    ]


def disturbances() -> list[str]:
    """What was behind roll-outs that left the flow."""
    measured = json.loads((ROOT / "results" / "cpu" / "sensitivity.json").read_text(encoding="utf-8"))
    names = {"x0, x1": "along both axes", "x0": "along x0", "x1": "along x1", "nowhere": "everywhere the same"}
    rows = [[row["bundle"], *(f"{row['gain'][key]:.2f}" for key in names)] for row in measured["rows"]]
    boxes = ", ".join(_gains(name) for name in ("turbulence-60", "smoke-64"))
    return [
        "## Why roll-outs left the flow",
        "",
        "With one frame per call `kolmogorov-128` was good for sixteen frames and went astray soon after; the first",
        "sign were stripes along the axes. Kernels are made from means along axes, and an error there feeds on itself:",
        f"the table has the size of what noise of {measured['level']:.1%} in the context does to the next frame, over",
        "the size of that noise, by how it varies in space (`results/cpu/sensitivity.json`, which",
        "`lab/analyses/sensitivity.py` makes).",
        "White noise averages out of the means (it was not tried at 128 points); noise in training that has a part on",
        "every mean brings the gains below one. Long pushforward helps, too, at a higher error (the rounds above).",
        "A gain acts once per call, with four frames per call a quarter as often. All of this is one run each at 128",
        "points; at 64 a run without noise stays with the flow as well ([ablations](results.md#ablations)).",
        "",
        *markdown(["kolmogorov-128, noise that varies", *names.values()], rows),
        "",
        f"In three dimensions the gains were lower without noise in training: {boxes}.",
        "",
    ]


def _gains(name: str) -> str:
    measured = json.loads((ROOT / "results" / "cpu" / f"sensitivity_{name}.json").read_text(encoding="utf-8"))
    gains = measured["rows"][0]["gain"].values()
    return f"`{name}` {min(gains):.2f} to {max(gains):.2f} (`results/cpu/sensitivity_{name}.json`)"


def against_solver() -> list[str]:
    """What the solver that made the data needs for the same frames, on a CPU and on a GPU."""
    cpu, gpu, full = (
        json.loads((ROOT / "results" / name).read_text(encoding="utf-8"))
        for name in (
            "cpu/solver_kolmogorov-128.json",
            "speed/solver_kolmogorov-128_bf16_h200.json",
            "speed/solver_kolmogorov-128_h200.json",
        )
    )
    surrogate, reference, *coarse = gpu["rows"]
    near, fast = surrogate["relative_l2"]["vorticity"], surrogate["seconds"]
    beaten = [row for row in coarse if row["relative_l2"]["vorticity"] > near and row["seconds"] > fast]
    names = " and ".join(f"{row['resolution']}²" for row in beaten)
    ahead = f"; on {names} points the solver is both slower and further off" if beaten else ""
    columns = ["contender", "points per axis", "seconds", "vorticity"]
    return [
        "Seconds for what the surrogate `kolmogorov-128` predicts, against the solver that made its data and the same",
        f"solver on coarser grids from the same frame of {surrogate['resolution']}² points: new flows, "
        f"{gpu['num_frames']} frames (`factformer benchmark solver`).",
        "",
        f"{gpu['batch_size']} flows at once on {gpu['hardware']} (`results/speed/solver_kolmogorov-128_bf16_h200.json` "
        "and, for float32, `…-128_h200.json`):",
        "",
        *markdown(
            columns,
            [
                _contender(surrogate, ", bfloat16"),
                _contender(full["rows"][0], ", float32"),
                *(_contender(row) for row in gpu["rows"][1:]),
            ],
        ),
        "",
        f"{cpu['batch_size']} flows at once on {cpu['hardware']} (`results/cpu/solver_kolmogorov-128.json`):",
        "",
        *markdown(columns, [_contender(row) for row in cpu["rows"]]),
        "",
        *_lines(
            f"On the GPU, in bfloat16, the surrogate is {reference['seconds'] / fast:.1f} times as fast as the solver "
            f"that made its data{ahead}. In float32 and on a CPU the surrogate is slower: this is a fast solver for a "
            "periodic box, and what is gained there is accuracy on a coarse grid. A surrogate pays where steps of the "
            "solver are dear or there is none to hand."
        ),
    ]


def _lines(text: str) -> list[str]:
    """A paragraph in lines of the usual length, links left whole."""
    return textwrap.wrap(text, 115, break_on_hyphens=False, break_long_words=False)


def _contender(row: dict[str, Any], form: str = "") -> list[str]:
    error = f"{row['relative_l2']['vorticity']:.4f}" if row.get("relative_l2") else "–"
    return [f"{row['contender']}{form}", str(row["resolution"]), f"{row['seconds']:#.3g}", error]


def darcy_points() -> list[str]:
    """What no model can know on a coarse grid, and what the solver makes of the same points."""
    measured = json.loads((ROOT / "results" / "cpu" / "darcy_points.json").read_text(encoding="utf-8"))
    solver = "solver on these nodes"

    def best(row: dict[str, dict[str, float]]) -> dict[str, float]:
        return min((scores for name, scores in row.items() if name != solver), key=lambda scores: scores["relative_l2"])

    rows = []
    for title, pick in (
        ("coefficient completed between them, solved on the full grid", best),
        ("solver on these points", lambda row: row[solver]),
    ):
        scores = [pick(row) for row in measured["rows"].values()]
        rows.append([title, *(with_spread(one["relative_l2"], one["standard_error"]) for one in scores)])
    return [
        f"The solutions come from {measured['full_grid']}², a model sees the coefficient at every s-th point of that "
        "grid, and where an interface",
        "lies between two of them is lost to it. Completed between the points (the best of four ways) and solved again",
        "on the full grid, the coefficient gives the solution to within the first row; a model that has learnt how",
        "they look may come somewhat nearer, but what is not there it cannot know. The second row is the solver",
        f"on the same points, without a model ({measured['samples']} solutions, `lab/analyses/darcy_points.py`).",
        "",
        *markdown(["points", *(f"{size}²" for size in measured["rows"])], rows),
        "",
    ]


def repeats(found: dict[str, Finding]) -> list[str]:
    """Runs that were made twice, with another seed or on another day, beside the one of the tables."""
    lines = []
    for path, finding in found.items():
        shown = found.get(re.sub(r"-(seed\d+|first)\.json$", ".json", path))
        if shown is None or shown is finding:
            continue
        for field in finding.result["fields"]:
            ours, theirs = shown.error(field), finding.error(field)
            spread = shown.error(field, "standard_error")
            if ours is not None and theirs is not None and spread:
                lines.append(
                    f"- `results/{path}`, seed {finding.training['seed']}, {finding.updates:,} updates: {field} "
                    f"{finding.shown(field)} against {shown.shown(field)} with seed {shown.training['seed']} and "
                    f"{shown.updates:,}, {abs(ours - theirs) / spread:.1f} standard errors apart"
                )
    return lines


def results_page(found: dict[str, Finding]) -> str:
    """docs/results.md."""
    fine, _ = TABLE_1.find("factformer", "latent_marching").errors["vorticity"]
    again = repeats(found)
    minutes = {group: f"{GROUPS[group]()[0].minutes:g} minutes" for group in ("kolmogorov", "darcy", "turbulence")}
    parts = [
        "# Results",
        "",
        "Made by `docs/make_results.py` from the files under `results/`, each with command, commit, seed, fingerprint",
        "of the data, hardware and wall time. Errors are relative L2 norms over the predicted sequence, averaged over",
        "test windows. Every model of a table trains on the same data for the same time and is tested on the same",
        "windows; the first row is the best. A run that has not been made says so.",
        "",
        CONDITIONS,
        "",
        f"## Kolmogorov flow, 128 × 128, {minutes['kolmogorov']}",
        "",
        *sections.equal_cost("kolmogorov", found),
        "",
        "The paper's column is for 256 × 256 points and 100,000 updates; at 128 × 128 it reports",
        f"{TABLE_4[0].relative_l2} for FactFormer with latent marching ({fine} at 256 × 256), on its own data.",
        "",
        *sections.beyond(GROUPS["kolmogorov"](), found, "### Longer roll-outs"),
        "### The same recipe for all",
        "",
        "How much of it is the recipe: models of the paper with that of `factformer_plus`. It suits convolutions;",
        "without a local branch one frame per call loses the flow ([ablations](#ablations)).",
        "",
        *sections.equal_cost("kolmogorov-recipe", found),
        "",
        "### Long runs",
        "",
        *sections.long_runs(found),
        "",
        *sections.beyond(GROUPS["long"](), found),
        f"## Darcy flow, 85 × 85, {minutes['darcy']}",
        "",
        *sections.equal_cost("darcy", found),
        "",
        "### Training resolution",
        "",
        *resolutions.study(found),
        "",
        *(["![Error against training resolution](images/darcy-resolutions.png)", ""] if FIGURE.is_file() else []),
        *darcy_points(),
        f"## Isotropic turbulence, 60 × 60 × 60, {minutes['turbulence']}",
        "",
        *sections.equal_cost("turbulence", found),
        "",
        "The paper trains for 100,000 updates on 1,000 solutions from the start of its released generator; ours is",
        "Rogallo's as published ([data](data.md)).",
        *sections.behind_paper("turbulence", found),
        "",
        f"## Smoke buoyancy, 64 × 64 × 64, {minutes['turbulence']}",
        "",
        *sections.equal_cost("smoke", found),
        "",
        "The paper trains for 100,000 updates on 2,000 solutions.",
        *sections.behind_paper("smoke", found),
        "",
        "### The same recipe for all",
        "",
        "With one frame per call, which did more for `factformer_plus` here than anything else. It",
        "brings `factformer` little; the errors of `dilated_resnet` are larger with it and grow over the frames.",
        "",
        *sections.equal_cost("smoke-recipe", found),
        "",
        "## Against the solver",
        "",
        *against_solver(),
        "",
        "## Ablations",
        "",
        "Kolmogorov flow at 64 × 64, one minute each; the change is against the mean of the model's base runs.",
        "",
        *sections.ablations(found),
        "",
        *sections.beyond(GROUPS["ablations"](), found),
        *(["## Runs made twice", "", *again, ""] if again else []),
        "## Additions of factformer_plus on a CPU",
        "",
        *additions(),
        "",
        "Ideas and what they did: [research log](research-log.md). Speed: [on a GPU](performance.md), "
        "[of the solvers](data.md#speed).",
        "",
    ]
    return "\n".join(parts)


def readme(text: str, found: dict[str, Finding]) -> str:
    """README.md with its block of results renewed."""
    bundle: dict[str, Any] = json.loads((ROOT / "zoo" / PICTURED / "bundle.json").read_text(encoding="utf-8"))
    finding = run_of(bundle["provenance"], found)
    assert finding is not None, f"no result file belongs to the bundle {PICTURED}"
    far = leaves(finding.result.get("beyond"))
    warning = f"; not for longer roll-outs: {far}" if far else ""
    caption = (
        f"*Kolmogorov flow at Re = 1000 on 128 × 128 points, a flow the surrogate has not seen:\n"
        f"[`{PICTURED}`](zoo/{PICTURED}/README.md) after {finding.minutes:.0f} minutes of training on "
        f"{finding.result['hardware']}, relative error {finding.shown('vorticity')}\n"
        f"over 16 frames ([measurement](results/{finding.path})){warning}.*"
    )
    lines = [
        "![Kolmogorov flow at Re = 1000: truth, prediction and their difference](docs/images/rollout.gif)",
        "",
        caption,
        "",
        "Models at equal cost (relative L2 error on unseen solutions, best first; [all results](docs/results.md)):",
        "",
        *sections.summary(found),
        "",
        *_lines(
            "The models of the paper train as the paper says; `factformer_plus` is ours, with a recipe that was chosen "
            f"for it, partly on the flows of the first row. With that recipe {sections.recipe_effects(found)} "
            "([details](docs/results.md#the-same-recipe-for-all))."
        ),
        "",
    ]
    return BLOCK.sub(lambda match: match[1] + "\n".join(lines) + match[2], text)


def written() -> dict[Path, str]:
    """Every page and what should be on it."""
    found = read_findings(ROOT / "results")
    front = ROOT / "README.md"
    return {
        ROOT / "docs" / "results.md": results_page(found),
        ROOT / "docs" / "research-log.md": "\n".join(
            [sections.research_log(found), *divergence(), *disturbances(), *screening()]
        ),
        front: readme(front.read_text(encoding="utf-8"), found),
        **write_cards(ROOT / "zoo", found),
    }


def write_picture() -> None:
    """The README's animation: the bundle on a flow that it has not seen."""
    problem = load(ROOT / "zoo" / PICTURED).problem
    with tempfile.TemporaryDirectory() as folder:
        show_bundle(PICTURED, Path(folder))
        (rollout,) = read_rollouts(Path(folder) / "rollouts.npz")["rollouts"]
    write_animation(
        ROOT / "docs" / "images" / "rollout.gif",
        rollout.prediction,
        rollout.truth,
        component=components(problem.state)[0],
        grid=problem.grid,
        frame_dt=problem.frame_dt,
        overwrite=True,
    )


if __name__ == "__main__":
    if "--picture" in sys.argv[1:]:
        write_picture()
    if not resolutions.write_figure(read_findings(ROOT / "results"), FIGURE):
        FIGURE.unlink(missing_ok=True)
    for path, text in written().items():
        path.write_text(text, encoding="utf-8")
