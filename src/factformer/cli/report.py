"""The command that shows what runs came to: report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from factformer.cli._answers import Json, Plugin, print_json


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders that `factformer evaluate` has been over.")],
    out: Annotated[Path, typer.Option(help="Folder for the page and its tables.")] = Path("report"),
    title: Annotated[str | None, typer.Option(help="Heading of the page; names its models if unset.")] = None,
    plugin: Plugin = None,
    overwrite: Annotated[bool, typer.Option(help="Replace an earlier report in that folder.")] = False,
    json: Json = False,
) -> None:
    """One self-contained HTML page of finished runs, with its table as Markdown, CSV and JSON.

    Example: factformer report runs/factformer runs/ffno --out report
    """
    from factformer.report.html import report_runs

    page = report_runs(runs, out, title=title, overwrite=overwrite)
    print_json({"page": str(page)}) if json else typer.echo(f"report: {page}")
