"""Evaluation and cost on a CUDA device."""

import dataclasses

import pytest
import torch

from factformer import Field, Grid, Problem, build_surrogate
from factformer.data.dataset import ArrayDataset
from factformer.data.normalization import Normalizer
from factformer.evaluation.accuracy import evaluate
from factformer.evaluation.attention import analyse_attention
from factformer.evaluation.cost import Case, measure

pytestmark = pytest.mark.gpu

PROBLEM = Problem(
    "made-up", Grid((32, 32), 1.0, True), (Field("density"),), num_context_frames=2, horizon=4, frame_dt=0.5
)
SIZES = {"dim": 32, "depth": 2, "heads": 2, "head_dim": 16, "kernel_dim": 16}
CASE = Case("gpu", PROBLEM, "factformer", SIZES, batch_size=2, device="cuda")


def dataset():
    frames = torch.randn(3, 8, 32, 32, 1, generator=torch.Generator().manual_seed(0))
    return ArrayDataset(frames, PROBLEM, "test", normalizer=Normalizer.identity(PROBLEM))


@pytest.mark.parametrize(("precision", "tolerance"), [("32-true", 1e-3), ("bf16-mixed", 5e-2)])
def test_evaluation_agrees_with_the_cpu(precision, tolerance):
    surrogate = build_surrogate(PROBLEM, marching_steps=2, **SIZES)
    here = evaluate(surrogate, dataset(), device="cpu", timing=False).fields["density"]
    there = evaluate(surrogate, dataset(), device="cuda", precision=precision)
    assert there.fields["density"].relative_l2 == pytest.approx(here.relative_l2, rel=tolerance)
    assert there.peak_memory_mb > 1
    assert "CPU" not in there.hardware


def test_cost_is_measured_in_this_process():
    row = measure(CASE)
    assert row["status"] == "ok"
    assert row["training_memory_mb"] > row["forward_memory_mb"] > 0


def test_out_of_memory_is_a_result_and_leaves_the_device_usable():
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(0.02)
    try:
        grid = Grid((1024, 1024), 1.0, True)
        row = measure(dataclasses.replace(CASE, problem=PROBLEM.with_grid(grid), batch_size=16))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert row["status"] == "OOM"
    assert measure(CASE)["status"] == "ok"


def test_attention_is_analysed_where_it_runs():
    surrogate = build_surrogate(PROBLEM, **SIZES).cuda()
    analysis = analyse_attention(surrogate, [torch.randn(2, 2, 32, 32, 1, device="cuda")])
    assert len(analysis.summary["kernels"]) == 4
    assert analysis.kernels[(0, 0)].device.type == "cpu"
