"""Write every page of results from the files under results/: no number on them is typed by hand.

    python -m lab.pages.make [--picture]

Writes docs/results.md, docs/paper.md, docs/research-log.md, docs/gallery.md, the block of results in README.md, tables
in docs/performance.md and how-to pages, the cards of the zoo, the figure of the resolution study, and
docs/reference/settings.md from the configurations. With ``--picture`` also the README's animation, from a flow that is
simulated for it.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from factformer.bundle import load
from factformer.demo import show_bundle
from factformer.report.animation import write_animation
from factformer.report.paper import TABLE_1, TABLE_4
from factformer.report.planes import components
from factformer.report.samples import read_rollouts
from lab import ROOT
from lab.campaign.run_groups import GROUPS
from lab.gallery.gallery_page import PAGE as GALLERY
from lab.gallery.gallery_page import gallery_page
from lab.pages import gpu_checks, large_grids, measurements, resolutions, sections, settings, spacings
from lab.pages.cards import leaves, run_of, write_cards
from lab.pages.findings import Finding, paragraph, read_findings
from lab.pages.notebook import notebook
from lab.pages.one_dimension import one_axis
from lab.pages.paper_page import paper_page
from lab.pages.patch_shapes import patch_shapes

FIGURE = ROOT / "docs" / "images" / "darcy-resolutions.png"
PICTURED = "kolmogorov-128"
CONDITIONS = """\
- **The models of the paper** train as the paper says. The Transformers use AdamW with one cycle, the others Adam from
  5e-4 to 5e-6. Batch size, curriculum, pushforward and the unrolled steps of autoregressive runs are the paper's.
- **`factformer_plus`** is ours and has its own recipe, which short runs decided ([research log](research-log.md)). The
  first of these runs were judged on the test flows of the Kolmogorov table. Where a table says so, one call of
  `factformer_plus` predicts fewer frames. It then learns more per second of training, and needs more calls for the
  same number of frames.
- **± is the standard error over test solutions** of one trained model. Another seed changes an error as well, for
  `factformer` by several times as much (see the three seeds under Ablations). Rows that lie close together may change
  places.
- **Time** counts all training steps but the first, which compiles. Matrix products are in bfloat16 in training and in
  float32 in evaluation. Encoder, marching and decoder run on the same fused kernels for every model. The layers between
  them run on our kernels for `factformer` and `factformer_plus` and on PyTorch's operations for the others, which
  explains part of the differences in updates. The runs of a table were made at different commits, and some kernels
  became faster in between. Each file names its commit.
- **Coordinates.** The Transformers are given the coordinates of every point; `fno`, `ffno` and `dilated_resnet` are
  not. The paper does not mention coordinates for its baselines. [Models](models.md) says what they are worth.
- **Windows.** A training window holds the frames that the longest update needs. Smoke has 20 frames: with four frames
  per call and two pushforward calls a window begins at one of the first 5, with one frame per call at one of the
  first 14."""


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
                    f"- `results/{path}` (seed {finding.training['seed']}, {finding.updates:,} updates): {field} "
                    f"{finding.shown(field)}, in the table {shown.shown(field)} (seed {shown.training['seed']}, "
                    f"{shown.updates:,} updates); the difference is {abs(ours - theirs) / spread:.1f} standard errors"
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
        *paragraph(
            "Written by `python -m lab.pages.make` from the files under `results/`. Each of them holds its command, "
            "commit, seed, fingerprint of the data, hardware and wall time. Errors are relative L2 norms over the "
            "predicted sequence, averaged over test windows. All models of a table train on the same data for the same "
            "time and are tested on the same windows. The first row is the best. A run that has not been made says so."
        ),
        "",
        CONDITIONS,
        "",
        f"## Kolmogorov flow, 128 × 128, {minutes['kolmogorov']}",
        "",
        *sections.equal_cost("kolmogorov", found),
        "",
        "The paper's column holds its errors at 256 × 256 points after 100,000 updates, on its own data. For",
        f"FactFormer with latent marching the paper reports {fine} there and {TABLE_4[0].relative_l2} at 128 × 128.",
        "",
        *sections.beyond(GROUPS["kolmogorov"](), found, "### Longer roll-outs"),
        "### The same recipe for all",
        "",
        "How much of the difference is due to the recipe? Here models of the paper train with that of",
        "`factformer_plus`. It suits convolutions. Without a local branch, one frame per call loses the flow",
        "([ablations](#ablations)).",
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
        *measurements.darcy_points(),
        f"## Isotropic turbulence, 60 × 60 × 60, {minutes['turbulence']}",
        "",
        *sections.equal_cost("turbulence", found),
        "",
        "The paper trains for 100,000 updates on 1,000 solutions. Their initial states come from its released",
        "generator; ours are Rogallo's as published ([data](data.md)).",
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
        "This recipe predicts one frame per call, which helped `factformer_plus` here more than anything else. It",
        "hardly helps `factformer`. The errors of `dilated_resnet` become larger with it and grow over the frames.",
        "",
        *sections.equal_cost("smoke-recipe", found),
        "",
        *spacings.patches_and_strides(found),
        "## Against the solver",
        "",
        *measurements.against_solver(),
        "",
        *spacings.bill(),
        "## Ablations",
        "",
        "Kolmogorov flow at 64 × 64 points, one minute each. Changes are against the mean of the model's base runs.",
        "",
        *sections.ablations(found),
        "",
        *sections.beyond(GROUPS["ablations"](), found),
        *(["## Runs made twice", "", *again, ""] if again else []),
        "## Additions of factformer_plus on a CPU",
        "",
        *measurements.additions(),
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
        *paragraph(
            "The models of the paper train as the paper says. `factformer_plus` is ours; its recipe was chosen for it, "
            "partly on the test flows of the first row. With that recipe the errors of other models in the first row "
            f"change: {sections.recipe_effects(found)} ([details](docs/results.md#the-same-recipe-for-all))."
        ),
        "",
        *paragraph(spacings.headline(found)),
        "",
    ]
    return renewed(text, "results", lines)


def renewed(text: str, name: str, lines: list[str]) -> str:
    """A page with what stands between its marks of this name renewed."""
    block = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end of {name} -->)", re.DOTALL)
    return block.sub(lambda match: match[1] + "\n".join(lines) + match[2], text)


def with_blocks(page: Path, tables: Mapping[str, list[str]]) -> str:
    """A page of prose with its tables renewed."""
    text = page.read_text(encoding="utf-8")
    for name, lines in tables.items():
        text = renewed(text, name, ["", *lines, "", ""])
    return text


def written() -> dict[Path, str]:
    """Every page and what should be on it."""
    found = read_findings(ROOT / "results")
    front, docs = ROOT / "README.md", ROOT / "docs"
    large = json.loads(large_grids.RESULT.read_text(encoding="utf-8"))
    blocks = {
        docs / "how-to" / "several-gpus.md": {"large grids": large_grids.table(large), "peaks": gpu_checks.peaks()},
        docs / "how-to" / "parameters-and-geometry.md": {"time steps": gpu_checks.time_steps()},
        docs / "performance.md": {"conditions": gpu_checks.conditions(), "other cards": gpu_checks.other_cards()},
    }
    return {
        ROOT / "docs" / "results.md": results_page(found),
        ROOT / "docs" / "paper.md": paper_page(found, ROOT / "results"),
        ROOT / "docs" / "research-log.md": "\n".join(
            [
                sections.research_log(found),
                *measurements.divergence(),
                *measurements.disturbances(),
                *one_axis(),
                *patch_shapes(),
                *measurements.screening(),
            ]
        ),
        **{page: with_blocks(page, tables) for page, tables in blocks.items()},
        front: readme(front.read_text(encoding="utf-8"), found),
        ROOT / "docs" / "tutorial.ipynb": notebook((ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")),
        settings.PAGE: settings.settings_page(),
        GALLERY: gallery_page(),
        **write_cards(ROOT / "zoo", found),
    }


def write_picture() -> None:
    """The README's animation: the bundle on a flow that it has not seen."""
    problem = load(ROOT / "zoo" / PICTURED).problem
    with tempfile.TemporaryDirectory() as folder:
        show_bundle(PICTURED, Path(folder))
        (rollout,) = read_rollouts(Path(folder) / "rollouts.npz").rollouts
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
