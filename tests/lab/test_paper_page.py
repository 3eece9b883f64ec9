"""docs/paper.md: published numbers are there, ours come from files, and nothing is compared at unequal cost."""

from pathlib import Path

import pytest

from factformer.report import paper
from factformer.report.tables import format_value
from factformer.studies.cells import Costing
from factformer.studies.targets import BUILDERS, FAMILIES, find_target
from lab.pages import paper_page as page
from lab.pages.findings import Finding, read_findings
from lab.pages.paper_cells import NOT_RUN, Ours, fill
from lab.pages.paper_items import ITEMS

ROOT = Path(__file__).parents[2]
OTHER_SOURCES = (".apebench", ".literature")
"""Families of targets that are not from this paper."""
SHAPES = {"kolmogorov_flow": 2, "darcy_flow": 2, "isotropic_turbulence": 3}


def finding(path, model, error, problem="kolmogorov_flow", *, spread=0.001, updates=1000, minutes=3, train=100):
    size = int(path.split("/")[0].rpartition("-")[2])
    errors = {
        "relative_l2": error,
        "relative_l2_final": 2 * error,
        "standard_error": spread,
        "standard_error_final": spread,
    }
    fields = {"kolmogorov_flow": ["vorticity"], "darcy_flow": ["solution"]}.get(problem, ["pressure", "velocity"])
    result = {
        "model": model,
        "problem": problem,
        "grid": [size] * SHAPES[problem],
        "fields": dict.fromkeys(fields, errors),
        "parameters": 3_460_000,
        "seconds_per_batch": 0.5,
        "batch_size": 10,
        "training": {"updates": updates, "training_seconds": 60 * minutes},
        "data": {"train": train},
    }
    return Finding(path, result)


def found(*findings):
    return {one.path: one for one in findings}


def by_row(name, there, reproduced=None):
    return fill(find_target(name, "paper"), there, reproduced or {})


def test_every_target_is_on_the_page_with_its_command():
    others = [name for family in FAMILIES if family.__name__.endswith(OTHER_SOURCES) for name in family.BUILDERS]
    assert set(ITEMS) == set(BUILDERS) - set(others)
    for name in ITEMS:  # a cell is found by its row and quantity
        places = [(cell.row, cell.quantity) for cell in find_target(name, "paper").cells]
        assert len(set(places)) == len(places), name
    text = page.paper_page({}, ROOT / "nowhere")
    for name in ITEMS:
        assert f"`factformer reproduce {name} --scale paper`" in text


def test_every_published_number_is_there_and_without_files_nothing_is_claimed():
    text = page.paper_page({}, ROOT / "nowhere")
    for table in paper.BENCHMARKS.values():
        for result in table.results:
            for average, final in result.errors.values():
                assert f"{NOT_RUN} ({format_value(average, 'error')})" in text
                assert f"{NOT_RUN} ({format_value(final, 'error')})" in text
            assert f"{NOT_RUN} ({format_value(result.seconds_per_batch, 'seconds')})" in text
    for row in paper.TABLE_4[:2]:
        assert f"{NOT_RUN} ({format_value(row.training_memory_mb, 'megabytes')})" in text
    assert "±" not in text.replace("± is the standard error", "")
    assert "128 (128)" in text


def test_the_numbers_of_the_files_are_on_the_page():
    there = read_findings(ROOT / "results")
    text = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
    one = there["kolmogorov-128/factformer-3min.json"]
    assert f"{one.shown('vorticity')} ({paper.TABLE_4[0].relative_l2:.4f})" in text
    assert "`results/kolmogorov-128/factformer-3min.json`" in text


def test_the_rows_of_a_table_have_one_grid_and_one_clock():
    short = [finding(f"kolmogorov-128/{model}-3min.json", model, 0.2) for model in ("fno", "ffno", "factformer")]
    long = finding("kolmogorov-128/factformer-15min.json", "factformer", 0.1, minutes=15)
    rows = by_row("table1", found(*short, long))
    assert rows["factformer LM", "vorticity, average error"].value == 0.2
    assert rows["factformer LM", "vorticity, average error"].status == "reduced (128², 3 min, 1,000 updates)"
    assert rows["factformer AR", "vorticity, average error"] == Ours()
    assert rows["fno LM", "inference time (s)"] == Ours()  # of another grid
    assert rows["fno LM", "parameters"].value == 3_460_000


def test_an_ablation_does_not_mix_grids():
    base = finding("kolmogorov-128/factformer-3min.json", "factformer", 0.1)
    heads = [
        finding("ablations-64/factformer.json", "factformer", 0.30, minutes=1),
        finding("ablations-64/factformer-1-head.json", "factformer", 0.50, minutes=1),
        finding("ablations-64/factformer-seed-1.json", "factformer", 0.31, minutes=1),
    ]
    there = found(base, *heads)
    rows = by_row("ablation-heads", there)
    assert {row: ours.value for (row, _), ours in rows.items()} == {
        "1": 0.5,
        "2": None,
        "4": None,
        "8": 0.3,
        "12": None,
    }
    seeds = by_row("seeds", there)
    assert [seeds[f"seed {k}", "average error"].value for k in range(3)] == [0.30, 0.31, None]


def test_darcy_takes_only_runs_of_the_same_resolution():
    runs = [
        finding(f"darcy-{n}/fno-2min.json", "fno", n / 1000, "darcy_flow", minutes=2, train=1000) for n in (61, 141)
    ]
    rows = by_row("figure-darcy-resolutions", found(*runs))
    assert rows["fno", "error at 61 points per axis"].value == 0.061
    assert rows["fno", "error at 85 points per axis"].value is None
    assert rows["ffno", "error at 61 points per axis"].value is None


def test_a_run_as_long_as_the_papers_is_at_paper_scale():
    one = finding("kolmogorov-128/factformer-3min.json", "factformer", 0.15, updates=100_000)
    assert by_row("table4", found(one))["factorized attention", "average error"].status == "paper scale"
    less = finding("kolmogorov-128/factformer-3min.json", "factformer", 0.15, updates=100_000, train=50)
    status = by_row("table4", found(less))["factorized attention", "average error"].status
    assert status == "reduced (128², 3 min, 100,000 updates, 50 of 100 solutions)"


def test_what_reproduce_wrote_comes_first():
    target = find_target("figure-cost-2d", "paper")
    cell = next(cell for cell in target.cells if isinstance(cell.work, Costing))
    row = {"row": cell.row, "quantity": cell.quantity, "ours": 0.5, "standard_error": None, "status": "paper scale"}
    rows = by_row("figure-cost-2d", {}, {"figure-cost-2d": {"cells": [row]}})
    assert rows[cell.row, cell.quantity] == Ours(0.5, None, "paper scale", "paper/figure-cost-2d.json", True)
    assert sum(ours.value is not None for ours in rows.values()) == 1


@pytest.mark.parametrize(
    ("ffno", "resnet", "verdict"),
    [
        (0.30, 0.20, "agreed"),
        (0.20, 0.30, "not agreed"),
        (0.200, 0.201, "within chance"),
        (0.201, 0.200, "within chance"),
    ],
)
def test_the_order_of_models_is_held_against_the_papers(ffno, resnet, verdict):
    """In the paper Dil-ResNet (LM) is ahead of F-FNO (LM) in every row of Table 2."""
    there = found(
        finding("turbulence-60/ffno-3min.json", "ffno", ffno, "isotropic_turbulence"),
        finding("turbulence-60/dilated_resnet-3min.json", "dilated_resnet", resnet, "isotropic_turbulence"),
    )
    filled = fill(find_target("table2", "paper"), there, {})
    rows = list(page.order_rows("table2", filled))
    assert len(rows) == 4
    assert {row[-1] for row in rows if "average" in row[1]} == {verdict}
    assert {row[2] for row in rows} == {"2 of 8"}
    assert {row[-1] for row in page.order_rows("table1", fill(find_target("table1", "paper"), {}, {}))} == {NOT_RUN}


def test_the_power_law_goes_through_both_runs():
    assert page.heading([(1000, 0.4), (4000, 0.2)], 4000) == pytest.approx(0.2)
    assert page.heading([(1000, 0.4), (4000, 0.2)], 16_000) == pytest.approx(0.1)
    assert page.heading([(1000, 0.4)], 16_000) is None
    there = found(
        finding("kolmogorov-128/factformer-3min.json", "factformer", 0.4, updates=1000),
        finding("kolmogorov-128/factformer-15min.json", "factformer", 0.16, updates=100_000, minutes=15),
    )
    text = "\n".join(page.distance_section(there))
    assert "0.1600 ± 0.0010 | 1.05 (the same) | 100,000 | 0.1600 (1.05 times)" in text
    assert "| turbulence, 60 points per axis, pressure | 0.2545 | not run |" in text


def test_factors_of_the_paper():
    lines = page.factors_section(fill(find_target("table4", "paper"), {}, {}))
    assert "| forward + backward (s) | 3.16 | not run | not run |" in lines
    assert "| peak memory (MB) | 2.31 | not run | not run |" in lines
