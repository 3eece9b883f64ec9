"""Tables 1 to 4: models under two protocols, and factorized against linear attention."""

from __future__ import annotations

from factformer.evaluation import benchmarks
from factformer.report import paper
from factformer.studies.cells import Builder, Cell, Costing, Scale, Target, Training
from factformer.studies.targets.costs import STEP_COST, cost_case, kind_of
from factformer.studies.targets.kolmogorov import at_128

TABLE_RECIPES = {"table1": "kolmogorov", "table2": "turbulence", "table3": "smoke"}
TABLE_NOTES = {
    "table2": "The paper's numbers were made on data from the start of its released generator (the preset `released` "
    "of `isotropic_turbulence`); the data of this table start as Rogallo published.",
}
SHORT = {paper.AR: "AR", paper.LM: "LM"}


def benchmark_table(name: str) -> Target:
    """Tables 1 to 3: four models under two protocols, errors per field group, inference time, size."""
    table, recipe = paper.BENCHMARKS[name], TABLE_RECIPES[name]
    cells: list[Cell] = []
    for result in table.results:
        work = Training(recipe, result.model, result.protocol)
        row = f"{result.model} {SHORT[result.protocol]}"
        for group, (average, final) in result.errors.items():
            base = f"fields.{group}"
            cells += [
                Cell(
                    row,
                    f"{group}, average error",
                    work,
                    f"{base}.relative_l2",
                    average,
                    error_path=f"{base}.standard_error",
                ),
                Cell(
                    row,
                    f"{group}, final error",
                    work,
                    f"{base}.relative_l2_final",
                    final,
                    error_path=f"{base}.standard_error_final",
                ),
            ]
        cells += [
            Cell(row, "inference time (s)", work, "seconds_per_batch", result.seconds_per_batch, "seconds"),
            Cell(row, "parameters", work, "parameters", result.parameters, "count"),
        ]
    title = f"Table {name[-1]}: {table.title.lower()}, relative L2 errors and cost"
    return Target(name, title, tuple(cells), TABLE_NOTES.get(name, ""))


def table4(scale: Scale) -> Target:
    """Factorized against linear attention: accuracy and cost."""
    cells: list[Cell] = []
    for published, model in zip(paper.TABLE_4[:2], benchmarks.ATTENTION_MODELS, strict=True):
        row = f"{published.attention} attention"
        case = cost_case(scale, model, 128)
        error = "fields.vorticity.relative_l2"
        cells.append(
            Cell(
                row,
                "average error",
                at_128(scale, model),
                error,
                published.relative_l2,
                error_path="fields.vorticity.standard_error",
            )
        )
        for key, title in (
            ("encoder_seconds", "encoder, forward (s)"),
            ("propagator_seconds", "propagator, forward (s)"),
            *STEP_COST,
        ):
            cells.append(Cell(row, title, Costing(case), key, getattr(published, key), kind_of(key)))
    note = "The paper's einsum variant of linear attention computes the same products; ours has one form."
    return Target("table4", "Table 4: factorized against linear attention at 128²", tuple(cells), note)


BUILDERS: dict[str, Builder] = {
    "table1": lambda scale: benchmark_table("table1"),
    "table2": lambda scale: benchmark_table("table2"),
    "table3": lambda scale: benchmark_table("table3"),
    "table4": table4,
}
