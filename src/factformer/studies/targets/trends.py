"""Error frame by frame: the five trends of the paper's appendix, and both kinds of attention at 128²."""

from __future__ import annotations

from dataclasses import replace

from factformer.evaluation import benchmarks
from factformer.report import paper
from factformer.studies.cells import Builder, Cell, Scale, Target
from factformer.studies.targets.kolmogorov import at_128
from factformer.studies.targets.tables import TABLE_NOTES, benchmark_table


def average_errors(table: str) -> list[Cell]:
    """The average errors of a table; their runs hold the error of every frame."""
    return [cell for cell in benchmark_table(table).cells if cell.path.endswith(".relative_l2")]


def figure_error_trend(scale: Scale) -> Target:
    """The error of every model frame by frame; shares its runs with Table 1.

    The runs at 128² are left out where a scale has them in Table 1 already, since it has one grid for both.
    """
    cells = [replace(cell, quantity="average error") for cell in average_errors("table1")]
    for model in benchmarks.ATTENTION_MODELS:
        published, work = paper.TABLE_4[benchmarks.ATTENTION_MODELS.index(model)], at_128(scale, model)
        if any(cell.work == work for cell in cells):
            continue
        cells.append(
            Cell(
                f"{model} LM, 128²",
                "average error",
                work,
                "fields.vorticity.relative_l2",
                published.relative_l2,
                error_path="fields.vorticity.standard_error",
            )
        )
    return Target("figure-error-trend", "Kolmogorov flow: error frame by frame", tuple(cells))


def box_trend(name: str, table: str) -> Target:
    """The trends of both field groups in a cube; shares its runs with a table."""
    title = f"{paper.BENCHMARKS[table].title}: error frame by frame"
    return Target(name, title, tuple(average_errors(table)), TABLE_NOTES.get(table, ""))


BUILDERS: dict[str, Builder] = {
    "figure-error-trend": figure_error_trend,
    "figure-error-trend-turbulence": lambda scale: box_trend("figure-error-trend-turbulence", "table2"),
    "figure-error-trend-smoke": lambda scale: box_trend("figure-error-trend-smoke", "table3"),
}
