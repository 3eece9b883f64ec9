"""The paper's picture pages: what FactFormer predicts beside the truth and the difference, for every problem."""

from __future__ import annotations

from factformer.report import paper
from factformer.studies.cells import Builder, Cell, Scale, Target, Training
from factformer.studies.targets.tables import TABLE_NOTES, TABLE_RECIPES


def pictures(scale: Scale) -> Target:
    """FactFormer on all four problems; shares its runs with Tables 1 to 3 and, at 141², with the figure of Darcy."""
    cells = []
    for table, recipe in TABLE_RECIPES.items():
        work = Training(recipe, "factformer", paper.LM)
        for group, (average, _) in paper.BENCHMARKS[table].find("factformer", paper.LM).errors.items():
            base = f"fields.{group}"
            row = f"{paper.BENCHMARKS[table].title}, {group}"
            cells.append(
                Cell(row, "average error", work, f"{base}.relative_l2", average, error_path=f"{base}.standard_error")
            )
    darcy = Training("darcy", "factformer", "steady", 141 if scale == "paper" else None)
    solution = "fields.solution"
    cells.append(
        Cell(
            "Darcy flow, solution",
            "average error",
            darcy,
            f"{solution}.relative_l2",
            error_path=f"{solution}.standard_error",
        )
    )
    return Target("pictures", "Prediction, truth and difference", tuple(cells), TABLE_NOTES["table2"])


BUILDERS: dict[str, Builder] = {"pictures": pictures}
