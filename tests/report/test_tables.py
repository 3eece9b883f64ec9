from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

import pytest
from report_samples import evaluation, make_run, make_steady_run, plain_errors
from rich.console import Console

from factformer.report.runs import ReportRun, series_indices, unique_names
from factformer.report.tables import Column, Table, comparison_table, format_value

TABLE = Table(
    "Numbers",
    [
        Column("model", "Model"),
        Column("error", "error", "error", "lowest", "velocity"),
        Column("size", "Size", "count"),
    ],
    [{"model": "a", "error": 0.25, "size": 3_460_000}, {"model": "b", "error": 0.123456, "size": None}],
    [{"model": "floor", "error": 0.01}],
)


def test_markdown_bolds_the_best_and_leaves_the_reference_out_of_the_contest():
    assert TABLE.to_markdown().splitlines() == [
        "| Model | velocity: error | Size |",
        "|:---|---:|---:|",
        "| a | 0.2500 | 3.46 M |",
        "| b | **0.1235** | – |",
        "| floor | 0.0100 | – |",
    ]


def test_csv_and_json_keep_full_precision():
    rows = list(csv.DictReader(io.StringIO(TABLE.to_csv())))
    assert rows[1] == {"model": "b", "error": "0.123456", "size": ""}
    data = json.loads(TABLE.to_json())
    assert data["rows"][1] == {"model": "b", "error": 0.123456, "size": None}
    assert data["columns"]["error"] == "velocity: error"


def test_terminal_table_shows_the_same_cells():
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(replace(TABLE, note="Made [by] hand").to_rich())
    text = console.export_text()
    for expected in ("Numbers", "velocity: error", "0.1235", "3.46 M", "floor", "Made [by] hand"):
        assert expected in text


def test_a_wide_table_is_shown_in_parts_that_fit_80_columns_and_cut_nothing():
    names = ("error of the last frame", "seconds per sequence", "peak memory in megabytes", "updates", "status of it")
    columns = [Column("model", "Model"), *(Column(name, name, "error", None, "vorticity") for name in names)]
    rows = [{"model": model, **dict.fromkeys(names, 0.123456)} for model in ("factformer_plus", "dilated_resnet")]
    console = Console(width=80, record=True, file=io.StringIO())
    parts = Table("Wide", columns, rows, note="The end").within(80)
    for part in parts:
        console.print(part.to_rich(80))
    text = console.export_text()
    assert len(parts) > 1 and max(map(len, text.splitlines())) <= 80 and "…" not in text
    assert text.count("factformer_plus") == len(parts) and text.count("0.1235") == 10
    assert text.count("Wide") == text.count("The end") == 1


def test_a_pipe_in_a_name_does_not_break_markdown():
    table = Table("t", [Column("model", "Model")], [{"model": "a|b"}])
    assert table.to_markdown().splitlines()[-1] == "| a\\|b |"


def test_ties_and_lone_rows_have_no_best():
    column = Column("error", "error", "error", "lowest")
    assert Table("t", [column], [{"error": 1.0}, {"error": 1.0}, {"error": 2.0}]).best_row(column) is None
    assert Table("t", [column], [{"error": 1.0}]).best_row(column) is None
    assert Table("t", [column], [{"error": float("nan")}, {"error": 2.0}, {"error": 3.0}]).best_row(column) == 1


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (None, "error", "–"),
        (float("nan"), "error", "–"),
        (0.17336, "error", "0.1734"),
        (1234.5, "error", "1.23e+03"),
        (85_100_000, "count", "85.1 M"),
        (512, "count", "512"),
        (0.0421, "seconds", "0.0421"),
        (12029.0, "megabytes", "12,029"),
    ],
)
def test_values_as_people_read_them(value, kind, text):
    assert format_value(value, kind) == text


def test_comparison_holds_the_numbers_of_the_evaluation(plane_run, rival_run):
    table = comparison_table([plane_run, rival_run])
    assert [row["model"] for row in table.rows] == ["factformer", "ffno"]
    assert [row["protocol"] for row in table.rows] == ["LM", "AR"]
    for row, run in zip(table.rows, (plane_run, rival_run), strict=True):
        values = run.evaluation.to_dict()["fields"]["vorticity"]
        for key in (
            "relative_l2",
            "relative_l2_final",
            "standard_error",
            "vrmse",
            "spectrum_error",
            "correlation_time",
        ):
            assert row[f"vorticity.{key}"] == values[key]
        assert row["parameters"] == run.evaluation.parameters
    (floor,) = table.reference_rows
    assert floor["model"] == "persistence"
    assert (
        floor["vorticity.relative_l2"]
        == plane_run.evaluation.to_dict()["fields"]["vorticity"]["persistence"]["relative_l2"]
    )


def test_columns_that_nobody_measured_are_left_out(plane_run):
    errors = plain_errors([0.5], standard_error=float("nan"))
    nothing = dict.fromkeys(("parameters", "seconds_per_sequence", "peak_memory_mb"))
    table = comparison_table([ReportRun("a", evaluation({"vorticity": errors}, **nothing))])
    assert [column.key for column in table.columns] == ["model", "vorticity.relative_l2"]
    assert table.reference_rows == []


def test_steady_problems_are_held_against_the_training_mean_and_have_no_last_frame():
    table = comparison_table([make_steady_run()])
    assert table.reference_rows[0]["model"] == "training mean"
    keys = [column.key for column in table.columns]
    assert "solution.relative_l2" in keys
    assert not {"solution.relative_l2_final", "solution.correlation_time"} & set(keys)


def test_protocols_of_a_model_share_a_colour_and_repeats_are_numbered():
    runs = [
        make_run(name, shape=(8, 8), num_frames=2, num_samples=1, protocol=protocol)
        for name, protocol in (("a", "latent_marching"), ("a", "autoregressive"), ("b", "latent_marching"))
    ]
    assert series_indices(runs) == [0, 0, 1]
    assert unique_names(runs) == ["a (LM)", "a (AR)", "b (LM)"]
    twice = [runs[0], runs[0], runs[2]]
    assert series_indices(twice) == [0, 1, 2]
    assert unique_names(twice) == ["a (LM) #1", "a (LM) #2", "b (LM)"]
    assert [row["model"] for row in comparison_table(twice).rows] == ["a #1", "a #2", "b"]
    placed = [replace(run, folder=folder) for run, folder in zip(twice, ("long", "short", "b"), strict=True)]
    assert unique_names(placed) == ["a (LM), long", "a (LM), short", "b (LM)"]
    assert [row["model"] for row in comparison_table(placed).rows] == ["a, long", "a, short", "b"]
