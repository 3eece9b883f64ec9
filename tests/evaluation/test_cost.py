"""Cost: what is counted is exact, what is measured grows with the work, and too large a case ends as OOM."""

import dataclasses
import json

import pytest
import torch

from factformer import Field, Grid, Problem, build_surrogate
from factformer.errors import UserError
from factformer.evaluation import benchmarks
from factformer.evaluation.cost import Case, flops, free_memory_mb, measure, measure_here
from factformer.evaluation.memory import peak_memory

PROBLEM = Problem("made-up", Grid((16, 16), 1.0, True), (Field("density"),), num_context_frames=2)
SMALL = Case(
    "small",
    PROBLEM,
    "factformer",
    {"dim": 8, "depth": 1, "heads": 1, "head_dim": 8, "kernel_dim": 8},
    batch_size=2,
)


def test_flops_of_the_backbone_grow_with_its_layers():
    one, two = flops(SMALL), flops(dataclasses.replace(SMALL, overrides={**SMALL.overrides, "depth": 2}))
    three = flops(dataclasses.replace(SMALL, overrides={**SMALL.overrides, "depth": 3}))
    assert three["forward_flops"] - two["forward_flops"] == two["forward_flops"] - one["forward_flops"] > 0
    assert 2 < one["training_flops"] / one["forward_flops"] < 3.2
    assert one["parameters"] == SMALL.build().num_parameters


def test_flops_of_a_marching_step_are_those_of_its_matrices():
    steps = [flops(dataclasses.replace(SMALL, marching_steps=k))["forward_flops"] for k in (1, 2, 3)]
    points, latent, dim = 2 * 16 * 16, 16, 8
    marching = 2 * points * (latent * dim + dim * latent)
    decoder = 2 * points * (latent * dim // 8 + dim * dim // 2 + dim // 2)
    assert steps[2] - steps[1] == steps[1] - steps[0] == marching + decoder


def test_a_case_is_measured_here():
    parts = {"forward_seconds", "encoder_seconds", "propagator_seconds", "forward_memory_mb"}
    row = measure_here(dataclasses.replace(SMALL, training=False))
    assert set(row) == parts
    row = measure_here(SMALL)
    assert set(row) == parts | {"training_seconds", "training_memory_mb"}
    assert all(value >= 0 for value in row.values())


def test_a_case_on_the_cpu_is_measured_in_its_own_process():
    row = measure(SMALL)
    assert row["status"] == "ok"
    assert row["training_seconds"] > 0
    assert row["training_memory_mb"] is not None
    json.dumps(row, allow_nan=False)


def test_out_of_memory_is_a_result():
    grid = Grid((512, 512), 1.0, True)
    large = dataclasses.replace(SMALL, problem=PROBLEM.with_grid(grid), batch_size=8)
    row = measure(large, memory_limit_mb=50)
    assert row["status"] == "OOM"
    assert row["forward_flops"] > 0
    assert "forward_seconds" not in row


def test_a_failure_names_its_reason_and_a_wrong_case_is_the_users():
    assert measure(SMALL, timeout_seconds=0.01)["status"] == "failed (took more than 0.01 s)"
    with pytest.raises(UserError, match="kernel_dim"):
        measure(dataclasses.replace(SMALL, overrides={**SMALL.overrides, "kernel_dim": 7}))


def test_peak_memory_sees_what_was_freed_again():
    with peak_memory("cpu") as peak:
        values = torch.ones(40 * 2**18)
        (values + 1).sum()
        del values
    assert 75 < peak.megabytes < 120
    assert free_memory_mb() > 0


def test_case_survives_json():
    assert Case.from_dict(json.loads(json.dumps(SMALL.to_dict()))) == SMALL


def test_suites_vary_what_they_say():
    cases = benchmarks.attention_over_kernel_dim((16, 32), size=16)
    assert [(case.model, case.overrides["kernel_dim"]) for case in cases] == [
        ("factformer", 16),
        ("linear_attention", 16),
        ("factformer", 32),
        ("linear_attention", 32),
    ]
    assert {case.problem.grid.shape for case in benchmarks.attention_over_grid((6, 8))} == {
        (6,) * 3,
        (8,) * 3,
    }
    assert {case.model for case in benchmarks.all_models(size=16)} >= {"factformer", "fno", "ffno"}
    with pytest.raises(UserError, match="unknown model"):
        benchmarks.all_models(models=["fnoo"])


def test_linear_attention_costs_more_operations_at_the_papers_size():
    (factorized, linear) = (flops(case) for case in benchmarks.attention_over_kernel_dim((128,)))
    assert linear["training_flops"] > 1.5 * factorized["training_flops"]


def test_inference_over_batch_sizes():
    surrogate = build_surrogate(PROBLEM, **SMALL.overrides)
    seen = []
    result = benchmarks.inference(surrogate, batch_sizes=(1, 3), num_frames=2, report=seen.append)
    assert [row["batch_size"] for row in result["rows"]] == [1, 3]
    assert seen == result["rows"]
    for row in result["rows"]:
        assert row["frames_per_second"] == pytest.approx(2 * row["batch_size"] / row["seconds"])
