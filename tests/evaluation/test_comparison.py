"""The comparison of ways to run the network: same answers, one table."""

import time

import pytest
import torch

from factformer.batch import Batch
from factformer.errors import UserError
from factformer.evaluation import comparison
from factformer.evaluation.baselines import COMPILED, EAGER, OURS, SETTINGS, Ours, Setting, Textbook, tf32_products
from factformer.evaluation.comparison import compare, settings
from factformer.report.analysis import benchmark_table

TINY = Setting(
    "8² × 2", (8, 8), 2, 2, {"depth": 1, "dim": 16, "heads": 2, "head_dim": 8, "kernel_dim": 8}, frames=3, channels=2
)


def test_the_textbook_computes_what_we_compute():
    ours, theirs = Ours(TINY, "cpu"), Textbook(TINY, "cpu", compiled=False)
    assert torch.equal(ours.context, theirs.context)
    expected = ours.surrogate.predict(Batch(ours.context), TINY.steps, ours.surrogate.problem.grid)
    assert torch.allclose(theirs.call(), expected, rtol=1e-4, atol=1e-5)


def test_the_textbook_leaves_no_setting_behind():
    before = torch.get_float32_matmul_precision()
    with tf32_products():
        assert torch.get_float32_matmul_precision() == "high"
    assert torch.get_float32_matmul_precision() == before


def test_a_table_of_one_row():
    told = []
    result = compare([TINY], ways=(EAGER, OURS), device="cpu", report=told.append)
    (row,) = result["rows"]
    assert told == [row]
    for way in (EAGER, OURS):
        assert row[way]["infer_ms"] > 0
        assert row[way]["train_ms"] > 0
    assert row["distance"]["infer"] == pytest.approx(row[OURS]["infer_ms"] / row["floor"]["infer_ms"])
    table = benchmark_table(result).to_markdown()
    assert "8² × 2" in table
    assert f"{row[OURS]['infer_ms']:.3g} / {row[OURS]['train_ms']:.3g}" in table


@pytest.mark.parametrize(("script", "seconds", "word"), [("exit 3", 20.0, "ended"), ("sleep 60", 0.0, "in time")])
def test_a_process_that_ends_or_compiles_too_long_is_left_out(script, seconds, word, monkeypatch, tmp_path):
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(comparison.sys, "executable", str(program))
    child = comparison._Child(TINY, "infer", "cpu", 1)
    child.wait_until_ready(time.perf_counter() + seconds)
    assert word in child.measured()["status"]


def test_the_optimiser_is_part_of_the_step_where_asked():
    runner = Ours(Setting(TINY.name, TINY.shape, 2, 2, TINY.overrides, optimizer=True, frames=3), "cpu")
    before = [p.detach().clone() for p in runner.surrogate.parameters()]
    runner.train()
    assert any(not torch.equal(a, b) for a, b in zip(before, runner.surrogate.parameters(), strict=True))


def test_unknown_rows_and_a_missing_gpu_are_mistakes_of_the_user():
    assert settings() == list(SETTINGS.values())
    with pytest.raises(UserError, match="128"):
        settings(["129"])
    with pytest.raises(UserError, match="GPU"):
        compare([TINY], ways=(COMPILED,), device="cpu")
