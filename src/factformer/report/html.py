"""The report: one HTML file that stands alone, with the tables beside it as Markdown, CSV and JSON."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import yaml
from markupsafe import Markup
from matplotlib.figure import Figure

from factformer import __version__
from factformer._support.documents import finite
from factformer._support.files import clean_leftovers, require_free, write_together
from factformer._support.pages import page_templates
from factformer.errors import UserError
from factformer.report import content
from factformer.report.analysis import parameter_figures, solver_figure
from factformer.report.clips import player_data
from factformer.report.common_times import Times, runs_at_common_times
from factformer.report.figures import kernel_maps
from factformer.report.reductions import reduction_figures
from factformer.report.runs import ReportRun, load_run, unique_names
from factformer.report.style import color_tables, palette_css
from factformer.report.tables import Table, comparison_table

MAX_BYTES = 8_000_000
ROOM_FOR_TEXT = 400_000
PAGE_NAME = "report.html"
SCRIPTS = ("format.js", "paint.js", "clips.js", "enlarge.js", "player.js", "charts.js", "page.js")


def report_runs(
    folders: Sequence[str | Path], out: str | Path, *, title: str | None = None, overwrite: bool = False
) -> Path:
    """Write the report of finished run folders; returns the page's path."""
    if not folders:
        raise UserError("no run folder given; pass at least one, such as `factformer report runs/a --out report`")
    runs = [load_run(folder) for folder in folders]
    problem = content.known_problem(runs)
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
    table: Table | None = None,
    trend: Mapping[str, content.Chart] | None = None,
    compared: bool = False,
    max_bytes: int = MAX_BYTES,
    overwrite: bool = False,
) -> Path:
    """Write ``report.html`` and ``comparison.{md,csv,json}`` into the folder ``out``; returns the page.

    The page holds everything it shows and stays under ``max_bytes``. ``figures`` adds pictures by heading. ``table``
    and ``trend`` replace the comparison of the runs and the curves of their errors. With ``compared`` the player begins
    with all models side by side.
    """
    if not runs:
        raise UserError("a report needs at least one run")
    out = Path(out)
    trend = content.error_charts(runs) if trend is None else trend
    runs, times = runs_at_common_times(runs)
    table = table or comparison_table(runs, note="" if times is None else times.describe())
    files = {
        out / PAGE_NAME: render_page(title, runs, table, trend, subtitle, figures or {}, max_bytes, compared, times),
        out / "comparison.md": table.to_markdown() + (f"\n{table.note}\n" if table.note else ""),
        out / "comparison.csv": table.to_csv(),
        out / "comparison.json": table.to_json() + "\n",
    }
    require_free(list(files), overwrite=overwrite)
    clean_leftovers(out)
    write_together({path: partial(_write_text, text=text) for path, text in files.items()})
    return out / PAGE_NAME


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def render_page(
    title: str,
    runs: Sequence[ReportRun],
    table: Table,
    trend: Mapping[str, content.Chart],
    subtitle: str = "",
    figures: Mapping[str, Figure] | None = None,
    max_bytes: int = MAX_BYTES,
    compared: bool = False,
    times: Times | None = None,
) -> str:
    """The page as text; frames of the runs are at these ``times`` where those that they predict differ."""
    names = unique_names(runs)
    frame_dt = content.frame_interval(runs)
    over = {
        f"Error over {parameter}" + (f", {name}" if len(runs) > 1 else ""): figure
        for run, name in zip(runs, names, strict=True)
        for parameter, figure in parameter_figures(run.evaluation).items()
    }
    beside = {} if frame_dt is None else reduction_figures(runs, names)
    pictures = [_picture(name, figure) for name, figure in {**beside, **over, **(figures or {})}.items()]
    with_kernels = [(name, run) for name, run in zip(names, runs, strict=True) if run.kernels]
    kernels = [
        _picture(name, kernel_maps(run.kernels)) | {"dark": _png(kernel_maps(run.kernels, dark=True))}
        for name, run in with_kernels
    ]
    measured = [(name, run.solver) for name, run in zip(names, runs, strict=True) if run.solver is not None]
    bills = [_picture(f"{name} against the solver", solver_figure(solver)) for name, solver in measured]
    spent = sum(len(text) for picture in [*pictures, *kernels, *bills] for text in picture.values()) + ROOM_FOR_TEXT
    data: dict[str, Any] = {
        "player": player_data(runs, names, max_bytes - spent, compared=compared),
        "maps": color_tables(),
        "timing": {"dt": frame_dt},
        "trend": trend,
        "spectra": content.spectrum_charts(runs),
    }
    page = (
        _environment()
        .get_template("report.html")
        .render(
            title=title,
            subtitle=subtitle,
            facts=content.facts(runs, times),
            cards=content.summary_cards(runs),
            player=data["player"],
            player_hint=content.player_hint(data["player"]),
            trend=data["trend"],
            spectra=data["spectra"],
            masked=any(run.problem is not None and run.problem.masked for run in runs),
            windows=content.windows(runs),
            floor=runs[0].evaluation.floor,
            protocols={run.protocol for run in runs},
            table=table,
            header_groups=content.header_groups(table),
            rows=content.table_cells(table),
            kernels=kernels,
            bills=[(bill, solver.sentences()) for bill, (_, solver) in zip(bills, measured, strict=True)],
            figures=pictures,
            repeat=[_repeat(run, name) for run, name in zip(runs, names, strict=True)],
            palette_css=Markup(palette_css()),
            css=_template_text("report.css"),
            script=Markup("\n").join(_template_text(name) for name in SCRIPTS),
            data=embedded_json(data),
            version=__version__,
        )
    )
    size = len(page.encode())
    if size > max_bytes:
        raise UserError(f"the page came to {size} bytes, more than {max_bytes}; report fewer runs or figures")
    return page


def _environment() -> jinja2.Environment:
    return page_templates("factformer.report", "templates")


def _template_text(name: str) -> Markup:
    return Markup((resources.files("factformer.report") / "templates" / name).read_text(encoding="utf-8"))


def embedded_json(data: Any) -> Markup:
    """JSON that cannot end its script element, with null for numbers that are not finite."""
    text = json.dumps(finite(data), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return Markup(text.replace("<", "\\u003c"))


def _repeat(run: ReportRun, name: str) -> dict[str, str]:
    config = yaml.safe_dump(dict(run.config), sort_keys=False, allow_unicode=True) if run.config else ""
    return {"name": name, "command": run.command, "config": config}


def _picture(name: str, figure: Figure) -> dict[str, str]:
    return {"name": name, "source": _png(figure), "alt": f"Figure: {name}"}


def _png(figure: Figure) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
