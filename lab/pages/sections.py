"""The pages of results, written from the result files alone: tables, ablations, research log."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from scipy.stats import t as student

from factformer.report import paper
from factformer.report.tables import format_count
from lab.campaign.entries import BFLOAT, PLUS, Entry, entry_name
from lab.campaign.research import ROUNDS, Round
from lab.campaign.run_groups import GROUPS
from lab.campaign.spacing_runs import SPACING_ROUNDS
from lab.pages.findings import NOT_RUN, Finding, markdown, of_entries, paragraph

PAPER_TABLES = {"kolmogorov": paper.TABLE_1, "turbulence": paper.TABLE_2, "smoke": paper.TABLE_3}
FIELDS = {
    "kolmogorov": ("vorticity",),
    "darcy": ("solution",),
    "turbulence": ("pressure", "velocity"),
    "smoke": ("density", "velocity"),
}
RECIPE = "-recipe"  # ends the names of groups that train models of the paper with ours
Found = Mapping[str, Finding]


def equal_cost(group: str, found: Found) -> list[str]:
    """The table of one problem, best model first and in bold, and what every run was given."""
    entries = GROUPS[group]()
    problem = group.removesuffix(RECIPE)
    if group != problem:  # beside the model whose recipe it is
        entries += [entry for entry in GROUPS[problem]() if entry.run.model == PLUS]
    there, missing = of_entries(entries, found)
    fields = FIELDS[problem]
    steady = group == "darcy"
    title, beside = _beside(group, found)
    columns = ["model"]
    for field in fields:
        columns += [f"{field}"] if steady else [f"{field}, all frames", f"{field}, last frame"]
    columns += ["updates", "parameters"] + ([title] if title else [])
    test_sets = {finding.test_set for finding in there}
    usual = _usual([finding.test_set for finding in there])
    rows = []
    for place, finding in enumerate(there):
        mark = "" if finding.test_set == usual else " †"
        row = [f"**{finding.label}**{mark}" if place == 0 and len(there) > 1 else f"{finding.label}{mark}"]
        for field in fields:
            row.append(finding.shown(field))
            if not steady:
                row.append(finding.shown_final(field))
        row += [f"{finding.updates:,}", format_count(finding.result["parameters"])]
        rows.append(row + ([beside(finding.model, finding.protocol)] if title else []))
    for entry in missing:
        empty = [NOT_RUN] * (len(columns) - 1)
        if title:
            empty[-1] = beside(entry.run.model, entry.run.protocol)
        rows.append([f"`{entry.run.model}`{', autoregressive' * (entry.run.protocol == 'autoregressive')}", *empty])
    lines = markdown(columns, rows)
    if there:
        lines += ["", _conditions(there), "", *given(there)]
    if len(test_sets) > 1:
        lines += ["", "† on another test set than the other rows: not to be compared with them."]
    return lines


def given(there: Sequence[Finding]) -> list[str]:
    """What each run was trained with, from its own configuration."""
    rows = []
    for finding in there:
        training, protocol = finding.training, finding.result["training"]["protocol"]
        steps = {
            "latent_marching": f"{protocol.get('marching_steps')} per call, pushforward {protocol.get('pushforward')}",
            "autoregressive": f"unrolled {protocol.get('unroll')}",
        }.get(finding.protocol, "–")
        steps += f", noise {training['noise']:.1%}" if training.get("noise") else ""
        rows.append(
            [
                finding.label,
                str(training["optimizer"]),
                f"{training['learning_rate']:g}",
                str(training["batch_size"]),
                str(training["precision"]),
                "yes" if training["augment"] else "no",
                f"{training['ema_decay']:g}" if training["ema_decay"] else "no",
                steps,
                str(training["seed"]),
            ]
        )
    columns = [
        "model",
        "optimiser",
        "learning rate",
        "batch",
        "precision",
        "symmetries",
        "weight average",
        "frames",
        "seed",
    ]
    lines = ["Settings of each run:", "", *markdown(columns, rows)]
    troubles = [f"{finding.label} {finding.trouble}." for finding in there if finding.trouble]
    return [*lines, "", *troubles] if troubles else lines


def beyond(entries: Sequence[Entry], found: Found, heading: str = "") -> list[str]:
    """Errors of roll-outs that are longer than the problem asks for; nothing where none was measured."""
    rows, notes, frames = [], [], [""]
    there = [(entry, found[entry.path]) for entry in entries if entry.path in found]
    for entry, finding in there:
        if "beyond" not in finding.result:
            continue
        far = finding.result["beyond"]
        frames = [f"frame {far['num_frames'] * k // 4}" for k in (1, 2, 3, 4)]
        for name, field in far["fields"].items():
            curve = field["relative_l2_per_frame"]
            rows.append(
                [
                    entry.title or finding.label,
                    name,
                    *(f"{curve[len(curve) * k // 4 - 1]:.3f}" for k in (1, 2, 3, 4)),
                    f"{field['correlation_time']:.2f}",
                    f"{far['num_diverged']} of {far['num_windows']}",
                ]
            )
        if "hardware" in far:  # measured after the run, on solutions and a machine of its own
            solutions = f"{far['num_windows']} new solutions ({far['hardware']})"
            notes += [f"{finding.label} was measured later: {far['bundle']}, on {solutions}.", ""]
    if not rows:
        return []
    if short := [entry.title or finding.label for entry, finding in there if "beyond" not in finding.result]:
        notes += [f"Not measured over longer roll-outs: {', '.join(short)}.", ""]
    return [
        *([heading, ""] if heading else []),
        "Longer roll-outs from the first frames of each solution. The table has the error of single frames, the time",
        "until the correlation with the true field falls below 0.8 (the whole length if it never does), and how many",
        "roll-outs became infinite or NaN.",
        "",
        *markdown(["run", "field", *frames, "correlated until", "not finite"], rows),
        "",
        *notes,
    ]


def long_runs(found: Found) -> list[str]:
    """Long runs beside short ones and the paper's number at the same resolution."""
    rows, notes = [], []
    coarse = paper.TABLE_4[0].relative_l2
    for entry in GROUPS["long"]():
        short = found.get(f"{entry.folder}/{entry_name(entry.run.model, entry.run.protocol, 3)}.json")
        row = [f"`{entry.run.model}`", NOT_RUN if short is None else short.shown("vorticity")]
        finding = found.get(entry.path)
        if finding is None:
            row += [NOT_RUN] * 3
        else:
            row += [finding.shown("vorticity"), finding.shown_final("vorticity"), f"{finding.updates:,}"]
            if finding.beside and short is not None:
                rates = (
                    f"{finding.updates_per_second:.0f} updates per second, against {short.updates_per_second:.0f} alone"
                )
                notes.append(f"{finding.label} shared the GPU with another run: {rates}.")
        rows.append([*row, f"{coarse}" if entry.run.model == "factformer" else "–"])
    columns = ["model", "3 minutes", "15 minutes", "last frame", "updates", "paper's, 100,000 updates"]
    return [*markdown(columns, rows), *(["", *notes] if notes else [])]


def variants(
    entries: Sequence[Entry], found: Found, bases: Mapping[str, Sequence[str]], *, shared: int = 0, noise: float
) -> list[str]:
    """One change at a time against the mean of the base runs of the same model; ``shared`` settings are in all.

    Smaller differences than `_chance` may be none; ``noise`` is what is known of the recipe beyond its base runs.
    """
    rows = []
    for entry in entries:
        finding = found.get(entry.path)
        own = [text for text in entry.run.settings if text not in BFLOAT][shared:]
        settings = ", ".join(f"`{text}`" for text in own) or "–"
        if finding is None:
            rows.append([entry.title, settings, NOT_RUN, "", "", "", ""])
            continue
        base = [found[path] for path in bases[entry.run.model] if path in found]
        base = [one for one in base if one.test_set == finding.test_set]
        is_base = entry.path in bases[entry.run.model]
        change, verdict, cost = "", "", ""
        if base and not is_base:
            totals = [one.total for one in base]
            difference = finding.total - statistics.fmean(totals)
            change = f"{difference:+.4f}"
            verdict = _verdict(difference, _chance(totals, noise))
            cost = f"{statistics.fmean(one.updates for one in base) / finding.updates:.2f} ×"
        mark = "" if finding.split == entry.split else " †"
        error = " / ".join(finding.shown(field) for field in FIELDS[entry.run.recipe])
        rows.append(
            [
                entry.title,
                settings,
                error + mark,
                "base" if is_base else change,
                ", ".join(word for word in (verdict, finding.trouble) if word),
                f"{finding.updates:,}",
                cost,
            ]
        )
    columns = ["variant", "settings", "error", "against the base", "verdict", "updates", "cost of an update"]
    return markdown(columns, rows)


def ablations(found: Found) -> list[str]:
    entries = GROUPS["ablations"]()
    bases = {
        model: [
            e.path
            for e in entries
            if e.run.model == model and e.title.partition(",")[0] == model and (e.title == model or "seed" in e.title)
        ]
        for model in ("factformer_plus", "factformer")
    }
    lines = variants(entries, found, bases, noise=Round.noise)
    spread = []
    for model, paths in bases.items():
        errors = [found[path].total for path in paths if path in found]
        if len(errors) > 1:
            spread.append(
                f"`{model}` {min(errors):.4f} to {max(errors):.4f} over {len(errors)} seeds "
                f"(chance: {_chance(errors, Round.noise):.2g})"
            )
    if not spread:
        return lines
    return [
        *lines,
        "",
        *paragraph(
            f"Spread of the base runs: {'; '.join(spread)}. With three seeds, chance is the distance from their mean "
            "that one more run stays within in 19 of 20 cases."
        ),
    ]


def research_log(found: Found) -> str:
    """The page of ideas: what was tried, what it did, what it cost, failures too."""
    entries = [*GROUPS["research"](), *GROUPS["spacing"]()]
    done = [found[entry.path] for entry in entries if entry.path in found]
    others = sorted(path for path in found if path.startswith("research/") and path not in {e.path for e in entries})
    lines = [
        "# Research log",
        "",
        *paragraph(
            "Ideas that might lower the error of `factformer_plus` per second of training: one change at a time, one "
            "minute of training each (`python -m lab.campaign run research spacing`), on Kolmogorov flow unless the "
            "heading names another problem. Written by `python -m lab.pages.make` from `results/research/`."
        ),
        "",
        *paragraph(
            f"Repeating a configuration of Kolmogorov flow changed its error by up to {Round.noise} in earlier runs, "
            "whose errors were twice as large. A smaller difference needs a second run before it is believed. Where "
            'roll-outs leave the flow, repetitions differ by far more (see "one frame, again"). The cost of an update '
            "is its time relative to an update of the recipe that the idea is compared with."
        ),
        "",
        f"{len(done)} of {len(entries)} ideas tried." if done else "No idea has been tried on a GPU yet.",
        "",
    ]
    for part in (*ROUNDS, *SPACING_ROUNDS):
        here, recipe = part.entries(), part.bases()
        bases = {"factformer_plus": [entry.path for entry in here if entry.title in recipe]}
        shown = ", ".join(f"`{text.partition('.')[2]}`" for text in part.recipe)
        on_top = f"; recipe: {shown}" if shown else "; what is not said is the recipe's"
        lines += [f"## {part.title}", "", f"{part.resolution} points per axis{on_top}.", ""]
        lines += [*variants(here, found, bases, shared=len(part.recipe), noise=part.noise), ""]
        if there := [found[entry.path] for entry in here if entry.path in found]:
            lines += [_conditions(there), ""]
        lines += beyond(here, found)
    if any(finding.split == "test" for finding in done):
        lines += ["† judged on the test set of the tables. Later ideas are judged on separate validation flows.", ""]
    if others:
        lines += ["Further runs:", ""]
        rows = [
            [
                found[p].result.get("entry", {}).get("title") or p,
                found[p].shown("vorticity"),
                f"{found[p].updates:,}",
                f"`results/{p}`",
            ]
            for p in others
        ]
        lines += [*markdown(["run", "error", "updates", "file"], rows), ""]
    return "\n".join(lines)


def summary(found: Found) -> list[str]:
    """The README's table: every problem, the first three models at equal cost, errors in the order of the fields."""
    rows = []
    titles = {
        "kolmogorov": "Kolmogorov flow, 128²",
        "darcy": "Darcy flow, 85²",
        "turbulence": "isotropic turbulence, 60³",
        "smoke": "smoke buoyancy, 64³",
    }
    for group, title in titles.items():
        entries = GROUPS[group]()
        there, missing = of_entries(entries, found)
        fields = f", {' and '.join(FIELDS[group])}" if len(FIELDS[group]) > 1 else ""
        row = [f"{title}{fields}, {entries[0].minutes:g} min each"]
        for finding in there[:3]:
            errors = [finding.error(field) for field in FIELDS[group]]
            row.append(f"{finding.label} " + ", ".join("diverged" if e is None else f"{e:#.3g}" for e in errors))
        row += [NOT_RUN] * (4 - len(row))
        rows.append([*row, f"{len(there)} of {len(there) + len(missing)}"])
    return markdown(["problem, training time", "first", "second", "third", "models run"], rows)


def _conditions(there: Sequence[Finding]) -> str:
    """Data, clock and machine that the rows share, from their files."""
    first = there[0].result
    machines = ", ".join(sorted({str(finding.result["hardware"]) for finding in there}))
    clocks = sorted({round(finding.minutes, 1) for finding in there})
    clock = f"{clocks[0]:g}" if len(clocks) == 1 else f"{clocks[0]:g} to {clocks[-1]:g}"
    clock += " minute" if clocks == [1.0] else " minutes"
    judged = " and ".join(sorted({"test" if finding.split == "test" else "validation" for finding in there}))
    data = first.get("data")
    size = f"{data['train']} training solutions, " if data else ""
    windows = f"{first['num_windows']} {judged} windows of {first['num_trajectories']} solutions"
    return f"{size}{windows}; {clock} of training on {machines}; ± is the standard error over these solutions."


def _beside(group: str, found: Found) -> tuple[str, Callable[[str, str], str]]:
    """Title of the last column and its cell for a model and protocol: published, or with the paper's recipe."""
    problem = group.removesuffix(RECIPE)
    fields = FIELDS[problem]
    errors: dict[tuple[str, str], str] = {}
    title = ""
    if group != problem:
        title = "paper's recipe, all frames"
        there, _ = of_entries([entry for entry in GROUPS[problem]() if entry.run.model != PLUS], found)
        errors = {(one.model, one.protocol): " / ".join(one.shown(field) for field in fields) for one in there}
    elif published := PAPER_TABLES.get(group):
        title = "paper's, all frames"
        for result in published.results:
            errors[result.model, result.protocol] = " / ".join(f"{result.errors[field][0]:.4f}" for field in fields)
    return title, lambda model, protocol: errors.get((model, protocol), "–")


def recipe_effects(found: Found) -> str:
    """How our recipe changes the errors of the paper's models, in words."""
    problem, (field,) = "kolmogorov", FIELDS["kolmogorov"]
    _, usual = _beside(problem + RECIPE, found)
    there, missing = of_entries(GROUPS[problem + RECIPE](), found)
    parts = [f"{one.label} from {usual(one.model, one.protocol)} to {one.shown(field)}" for one in there]
    return ", ".join(parts + [f"`{entry.run.model}` has not been run" for entry in missing])


def behind_paper(group: str, found: Found) -> list[str]:
    """How far the paper's model is from its published errors, and after how many updates."""
    entry = next(entry for entry in GROUPS[group]() if entry.run.model == "factformer")
    finding = found.get(entry.path)
    if finding is None:
        return []
    published = PAPER_TABLES[group].find(finding.model, finding.protocol).errors
    errors = {field: finding.error(field) for field in FIELDS[group]}
    times = " and ".join(f"{error / published[f][0]:.2f} ({f})" for f, error in errors.items() if error is not None)
    return [f"After {finding.updates:,} updates the errors of {finding.label} are {times} times the published ones."]


def _chance(totals: Sequence[float], noise: float) -> float:
    """How far a run of the same recipe may lie from the mean of ``totals``: with three of them in 19 of 20 cases."""
    count = len(totals)
    if count < 3:
        return max(noise, max(totals) - min(totals))
    return float(student.ppf(0.975, count - 1)) * statistics.stdev(totals) * math.sqrt(1 + 1 / count)


def _verdict(change: float, noise: float) -> str:
    word = "better" if change < 0 else "worse"
    return word if abs(change) >= noise else f"{word}, within chance ({noise:.2g})"


def _usual(values: Sequence[Any]) -> Any:
    return max(set(values), key=list(values).count) if values else None
