"""The report: one HTML file that stands alone, with the tables beside it as Markdown, CSV and JSON."""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Mapping, Sequence
from importlib import metadata, resources
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import yaml
from markupsafe import Markup
from matplotlib.colors import Colormap
from matplotlib.figure import Figure

from factformer.errors import UserError
from factformer.report.clips import player_data
from factformer.report.runs import ReportRun, load_run, unique_names
from factformer.report.style import SERIES, SERIES_DARK, difference_map, diverging_map, sequential_map
from factformer.report.tables import Table, comparison_table, format_count, format_value

MAX_BYTES = 8_000_000
PAGE_NAME = "report.html"
SCRIPTS = ("format.js", "clips.js", "player.js", "charts.js", "page.js")


def report_runs(
    folders: Sequence[str | Path], out: str | Path, *, title: str | None = None, overwrite: bool = False
) -> Path:
    """Write the report of finished run folders; returns the page's path."""
    if not folders:
        raise UserError(
            "no run folder given; pass at least one, such as `factformer report runs/a --out report`"
        )
    runs = [load_run(folder) for folder in folders]
    problem = next((run.problem for run in runs if run.problem is not None), None)
    subject = problem.name.replace("_", " ") if problem is not None else "surrogates"
    names = ", ".join(dict.fromkeys(run.name for run in runs))
    return write_report(Path(out), title=title or f"{names} on {subject}", runs=runs, overwrite=overwrite)


def write_report(
    out: Path,
    *,
    title: str,
    runs: Sequence[ReportRun],
    subtitle: str = "",
    figures: Mapping[str, Figure] | None = None,
    max_bytes: int = MAX_BYTES,
    overwrite: bool = False,
) -> Path:
    """Write ``report.html`` and ``comparison.{md,csv,json}`` into the folder ``out``; returns the page.

    The page holds everything it shows and stays under ``max_bytes``. ``figures`` adds pictures by heading.
    """
    if not runs:
        raise UserError("a report needs at least one run")
    out = Path(out)
    table = comparison_table(runs, unique_names(runs))
    files = {
        out / PAGE_NAME: render_page(title, runs, table, subtitle, figures or {}, max_bytes),
        out / "comparison.md": table.to_markdown(),
        out / "comparison.csv": table.to_csv(),
        out / "comparison.json": table.to_json(),
    }
    existing = [path for path in files if path.exists()]
    if existing and not overwrite:
        raise UserError(f"{existing[0]} exists; pass --overwrite to replace it or give another folder")
    out.mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        temporary = path.with_name(path.name + ".part")
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    return out / PAGE_NAME


def render_page(
    title: str,
    runs: Sequence[ReportRun],
    table: Table,
    subtitle: str,
    figures: Mapping[str, Figure],
    max_bytes: int,
) -> str:
    """The page as text."""
    names = unique_names(runs)
    pictures = [_picture(name, figure) for name, figure in figures.items()]
    kernels = _kernel_pictures(runs, names)
    spent = sum(len(picture["source"]) for picture in [*pictures, *kernels])
    data: dict[str, Any] = {
        "player": player_data(runs, names, int(0.9 * max_bytes) - spent - 200_000),
        "maps": _color_tables(),
        "timing": {"dt": _frame_dt(runs)},
        "trend": _trend(runs, names),
        "spectra": _spectra(runs, names),
    }
    page = (
        _environment()
        .get_template("report.html")
        .render(
            title=title,
            subtitle=subtitle,
            facts=_facts(runs),
            cards=_cards(runs, names, table),
            player=data["player"],
            player_hint=_player_hint(data["player"]),
            has_trend=any(len(line["x"]) > 1 for lines in data["trend"].values() for line in lines),
            has_autoregressive=any(run.protocol == "autoregressive" for run in runs),
            has_spectra=bool(data["spectra"]),
            windows=_windows(runs),
            table=table,
            rows=_rows(table),
            kernels=kernels,
            figures=pictures,
            repeat=[_repeat(run, name) for run, name in zip(runs, names, strict=True)],
            palette_css=Markup(_palette_css()),
            css=_template_text("report.css"),
            script=Markup("\n").join(_template_text(name) for name in SCRIPTS),
            data=_embedded_json(data),
            version=metadata.version("factformer"),
        )
    )
    if len(page.encode()) > max_bytes:
        raise UserError(
            f"the page came to {len(page.encode())} bytes, more than {max_bytes}; add fewer figures"
        )
    return page


def _environment() -> jinja2.Environment:
    loader = jinja2.PackageLoader("factformer.report", "templates")
    return jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )


def _template_text(name: str) -> Markup:
    return Markup((resources.files("factformer.report") / "templates" / name).read_text(encoding="utf-8"))


def _embedded_json(data: Any) -> Markup:
    """JSON that cannot end its script element, with null for numbers that are not finite."""
    text = json.dumps(_finite(data), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return Markup(text.replace("<", "\\u003c"))


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _palette_css() -> str:
    light = "".join(f"--series-{i}:{color};" for i, color in enumerate(SERIES))
    dark = "".join(f"--series-{i}:{color};" for i, color in enumerate(SERIES_DARK))
    return f":root{{{light}}}\n@media (prefers-color-scheme: dark){{:root{{{dark}}}}}"


def _color_tables() -> dict[str, str]:
    maps = {
        "sequential": sequential_map(),
        "diverging": diverging_map(),
        "difference": difference_map(),
        "diverging_dark": diverging_map(dark=True),
        "difference_dark": difference_map(dark=True),
    }
    return {name: base64.b64encode(_color_bytes(colors)).decode() for name, colors in maps.items()}


def _color_bytes(colors: Colormap) -> bytes:
    return bytes(np.rint(colors(np.arange(colors.N))[:, :3] * 255).astype(np.uint8).tobytes())


def _frame_dt(runs: Sequence[ReportRun]) -> float | None:
    return next(
        (run.problem.frame_dt for run in runs if run.problem is not None and not run.problem.steady), None
    )


def _groups(runs: Sequence[ReportRun]) -> list[str]:
    return list(dict.fromkeys(group for run in runs for group in run.evaluation["fields"]))


def _series_color(index: int) -> str:
    return f"var(--series-{index % len(SERIES)})"


def _trend(runs: Sequence[ReportRun], names: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """Error per frame of each field group, one line per run and the persistence of the first as the floor."""
    step = _frame_dt(runs) or 1.0
    charts: dict[str, list[dict[str, Any]]] = {}
    for group in _groups(runs):
        lines, floor = [], None
        for i, (run, name) in enumerate(zip(runs, names, strict=True)):
            values = run.evaluation["fields"].get(group, {})
            errors = values.get("relative_l2_per_frame")
            if errors:
                dash = "7 6" if run.protocol == "autoregressive" else ""
                lines.append({"name": name, "color": _series_color(i), "dash": dash, "y": list(errors)})
            floor = floor or (values.get("persistence") or {}).get("relative_l2_per_frame")
        if floor:
            lines.append({"name": "persistence", "color": "var(--muted)", "dash": "1 6", "y": list(floor)})
        for line in lines:
            line["x"] = [step * (frame + 1) for frame in range(len(line["y"]))]
        if lines:
            charts[group] = lines
    return charts


def _spectra(runs: Sequence[ReportRun], names: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    charts: dict[str, list[dict[str, Any]]] = {}
    for group in _groups(runs):
        lines: list[dict[str, Any]] = []
        for i, (run, name) in enumerate(zip(runs, names, strict=True)):
            spectrum = run.evaluation["fields"].get(group, {}).get("spectrum")
            if not spectrum:
                continue
            if not lines:
                lines.append(
                    {
                        "name": "truth",
                        "color": "var(--ink)",
                        "dash": "",
                        "x": spectrum["wavenumber"],
                        "y": spectrum["truth"],
                    }
                )
            lines.append(
                {
                    "name": name,
                    "color": _series_color(i),
                    "x": spectrum["wavenumber"],
                    "dash": "7 6" if run.protocol == "autoregressive" else "",
                    "y": spectrum["prediction"],
                }
            )
        if lines:
            charts[group] = lines
    return charts


def _cards(runs: Sequence[ReportRun], names: Sequence[str], table: Table) -> list[dict[str, str]]:
    """Headline numbers of the run with the least error in the first field group."""
    groups = _groups(runs)

    def error(index: int) -> float:
        value = runs[index].evaluation["fields"].get(groups[0], {}).get("relative_l2")
        return value if isinstance(value, (int, float)) and math.isfinite(value) else math.inf

    best = min(range(len(runs)), key=error)
    evaluation = runs[best].evaluation
    cards = []
    for group in groups[:2]:
        values = evaluation["fields"].get(group, {})
        average, final = values.get("relative_l2"), values.get("relative_l2_final")
        spread = values.get("standard_error")
        steady = len(values.get("relative_l2_per_frame") or [0]) < 2
        note = "" if steady else f"{format_value(final, 'error')} in the last frame"
        if isinstance(spread, float) and math.isfinite(spread):
            note = f"± {format_value(spread, 'error')}" + (f", {note}" if note else "")
        cards.append(
            {
                "label": f"Relative error of {group}",
                "value": format_value(average, "error"),
                "note": note,
                "key": f"{group}.relative_l2",
            }
        )
        floor = (values.get("persistence") or {}).get("relative_l2")
        if floor and average:
            cards.append(
                {
                    "label": "Better than persistence",
                    "value": f"{floor / average:.3g}×",
                    "note": f"persistence: {format_value(floor, 'error')}",
                    "key": "",
                }
            )
    if evaluation.get("parameters"):
        cards.append(
            {
                "label": "Parameters",
                "value": format_count(evaluation["parameters"]),
                "note": "trainable",
                "key": "parameters",
            }
        )
    if evaluation.get("seconds_per_sequence"):
        cards.append(
            {
                "label": "Time of a roll-out",
                "value": _duration(evaluation["seconds_per_sequence"]),
                "note": str(evaluation.get("hardware") or ""),
                "key": "seconds_per_sequence",
            }
        )
    if len(runs) > 1:
        cards.insert(
            0, {"label": f"Least error of {len(runs)} models", "value": names[best], "note": "", "key": ""}
        )
    return cards


def _duration(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _facts(runs: Sequence[ReportRun]) -> list[str]:
    problem = next((run.problem for run in runs if run.problem is not None), None)
    facts = []
    if problem is not None:
        facts += [problem.name.replace("_", " "), " × ".join(map(str, problem.grid.shape)) + " points"]
        if not problem.steady:
            facts.append(f"{problem.num_context_frames} frames seen, {problem.horizon} predicted")
    windows = runs[0].evaluation.get("num_windows")
    if windows:
        facts.append(f"{windows} test windows")
    hardware = runs[0].evaluation.get("hardware")
    return [*facts, str(hardware)] if hardware else facts


def _windows(runs: Sequence[ReportRun]) -> str:
    counts = {run.evaluation.get("num_windows") for run in runs}
    return f"{counts.pop()} test windows" if len(counts) == 1 and None not in counts else "the test windows"


def _player_hint(player: Mapping[str, Any] | None) -> str:
    if player is None:
        return ""
    keys = " Space plays, arrow keys step, the pointer reads values." if player["frames"] > 1 else ""
    thinned = f" Every {player['stride']}th point is shown." if player["stride"] > 1 else ""
    return "Truth and prediction share one colour scale; the difference has its own." + keys + thinned


def _rows(table: Table) -> list[dict[str, Any]]:
    best = {column.key: table.best_row(column) for column in table.columns}
    rows = []
    for i, row in enumerate(table.all_rows):
        cells = []
        for column in table.columns:
            value, text = row.get(column.key), format_value(row.get(column.key), column.kind)
            css = ("number" if column.is_number else "text") + (" best" if best[column.key] == i else "")
            plain = "" if value is None else (repr(value) if isinstance(value, float) else value)
            cells.append({"value": plain, "text": text, "css": css})
        rows.append({"cells": cells, "reference": i >= len(table.rows)})
    return rows


def _repeat(run: ReportRun, name: str) -> dict[str, str]:
    config = yaml.safe_dump(dict(run.config), sort_keys=False, allow_unicode=True) if run.config else ""
    return {"name": name, "command": run.command, "config": config}


def _kernel_pictures(runs: Sequence[ReportRun], names: Sequence[str]) -> list[dict[str, str]]:
    from factformer.report.figures import kernel_maps

    return [
        _picture(name, kernel_maps(run.kernels)) for run, name in zip(runs, names, strict=True) if run.kernels
    ]


def _picture(name: str, figure: Figure) -> dict[str, str]:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    source = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
    return {"name": name, "source": source, "alt": f"Figure: {name}"}
