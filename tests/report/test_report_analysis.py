"""Tables of evaluations, attention and benchmarks say what the results say."""

import json
import shutil

import numpy as np
import torch
from report_samples import evaluation, make_run, make_steady_run, plain_errors, save_run

from factformer.evaluation.attention import Analysis
from factformer.evaluation.results import Floor
from factformer.grid import Grid
from factformer.report import analysis
from factformer.report.analysis import (
    attention_table,
    benchmark_table,
    evaluation_table,
    write_attention_figures,
    write_evaluation_figures,
)

EVALUATION = evaluation(
    {
        name: plain_errors(
            [error] * 16,
            standard_error=0.01,
            relative_l2_final=2 * error,
            spectrum_error=0.1,
            correlation_time=3.0,
            persistence=Floor(floor, None, [None] * 16),
        )
        for name, error, floor in (("density", 0.1, 0.5), ("velocity", 0.2, 0.9))
    },
    num_windows=8,
)


def test_evaluation_has_a_row_per_field_with_its_floor():
    table = evaluation_table(EVALUATION)
    assert [row["field"] for row in table.rows] == ["density", "velocity"]
    assert [row["persistence"] for row in table.rows] == [0.5, 0.9]
    assert "| density | 0.1000 | 0.0100 | 0.2000 | 0.5000 | – |" in table.to_markdown()
    assert "8 windows of test" in table.title
    alone = evaluation_table(evaluation({"density": plain_errors([0.1])})).to_markdown()
    assert "Last frame" in table.to_markdown() and "Last frame" not in alone and "Correlation" not in alone


def test_figures_of_an_evaluation_have_the_shape_of_the_box(tmp_path, monkeypatch):
    grid = Grid((16, 12), (2.0, 1.0), True)
    run = make_run(shape=(16, 12), num_frames=2, num_samples=1)
    folder = save_run(tmp_path / "run", run, grid=np.array(json.dumps(grid.to_dict())))
    monkeypatch.setattr(analysis, "save_figures", lambda drawn, folder: drawn)
    shutil.rmtree(folder / "bundle")  # as `evaluate --out` leaves it
    picture = write_evaluation_figures(folder)["rollout-vorticity-0"].axes[0].images[0]
    assert picture.get_extent() == [0, 2, 0, 1]


def test_figures_of_a_steady_problem_show_no_time(tmp_path, monkeypatch):
    run = make_steady_run()
    folder = save_run(tmp_path / "run", run)
    monkeypatch.setattr(analysis, "save_figures", lambda drawn, folder: drawn)
    assert write_evaluation_figures(folder)["rollout-solution-0"].axes[0].get_title() == "frame 1"


def summary(axes):
    rows = [
        {
            "layer": layer,
            "axis": axis,
            "num_singular_values": 4,
            "rank_bound": 2,
            "fraction_for_energy": 0.5,
            "cumulative_energy": [0.6, 0.9, 1.0, 1.0],
        }
        for layer in (0, 1)
        for axis in axes
    ]
    return {"model": "any", "num_samples": 5, "energy_share": 0.9, "kernels": rows}


def test_attention_counts_layers_and_axes_from_one():
    rows = attention_table(summary((0, 1))).rows
    assert [(row["layer"], row["axis"]) for row in rows] == [(1, "x₁"), (1, "x₂"), (2, "x₁"), (2, "x₂")]
    assert {row["axis"] for row in attention_table(summary((None,))).rows} == {"all"}


def test_attention_is_drawn_per_axis_and_layer(tmp_path):
    kernels = {(layer, axis): torch.randn(2, 4, 4) for layer in (0, 1) for axis in (0, 1)}
    names = {path.name for path in write_attention_figures(Analysis(summary((0, 1)), kernels), tmp_path)}
    assert names == {"energy-axis1.png", "energy-axis2.png", "kernels-layer1.png", "kernels-layer2.png"}
    full = write_attention_figures(Analysis(summary((None,))), tmp_path)
    assert [path.name for path in full] == ["energy-full.png"]
    assert all(path.stat().st_size > 5000 for path in full)


def test_a_case_out_of_memory_says_so_in_every_measured_column():
    rows = [
        {"label": "fits", "status": "ok", "training_seconds": 0.5, "training_memory_mb": 100.0, "forward_flops": 2e9},
        {"label": "too large", "status": "OOM", "forward_flops": 4e9},
    ]
    table = benchmark_table({"benchmark": "attention", "rows": rows})
    assert [column.key for column in table.columns] == [
        "label",
        "training_seconds",
        "training_memory_mb",
        "forward_flops",
        "status",
    ]
    assert "| too large | OOM | OOM | 4 G | OOM |" in table.to_markdown()


def test_the_accuracy_of_a_solver_is_shown_beside_its_speed():
    rows = [
        {"method": "surrogate", "simulated_seconds_per_second": 12.0, "relative_l2": {"vorticity": 0.125}},
        {"method": "solver (reference)", "simulated_seconds_per_second": 1.0, "relative_l2": None},
    ]
    markdown = benchmark_table({"benchmark": "solver", "rows": rows}).to_markdown()
    assert "| surrogate | 12 | vorticity 0.1250 |" in markdown
    assert "| solver (reference) | 1 | – |" in markdown
