"""Kernels are collected from every layer, head and axis, and summarised as they are."""

import numpy as np
import pytest
import torch

from factformer import Field, Grid, Problem, build_surrogate
from factformer.batch import Batch
from factformer.errors import UserError
from factformer.evaluation.attention import analyse_attention, full_factors, record_attention
from factformer.evaluation.spectra import cumulative_energy, fraction_for_energy

PROBLEM = Problem(
    "made-up",
    Grid((10, 14), (1.0, 2.0), (True, False)),
    (Field("density"),),
    num_context_frames=2,
    boundary="zero",
)
SIZES = {"dim": 8, "depth": 2, "heads": 3, "kernel_dim": 4}


def contexts(num_batches: int = 2) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(3, 2, 10, 14, 1, generator=generator) for _ in range(num_batches)]


def test_factorized_attention_layer_by_layer():
    torch.manual_seed(0)
    surrogate = build_surrogate(PROBLEM, "factformer", head_dim=8, **SIZES)
    analysis = analyse_attention(surrogate, contexts())
    rows = analysis.summary["kernels"]
    assert [(row["layer"], row["axis"]) for row in rows] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert analysis.summary["num_samples"] == 6
    assert [row["num_singular_values"] for row in rows[:2]] == [10, 14]
    for row in rows:
        curve = np.array(row["cumulative_energy"])
        assert row["rank_bound"] == 4
        assert curve[3] == pytest.approx(1, abs=1e-6)  # four functions span each kernel
        assert (np.diff(curve) > -1e-12).all()
        assert 1 / len(curve) <= row["fraction_for_energy"] <= 4 / len(curve)
        assert 0 <= row["stationarity"] <= 1
        assert 0 <= row["symmetry"] <= 1
    assert analysis.kernels[(1, 0)].shape == (3, 10, 10)
    assert analysis.kernels[(1, 1)].shape == (3, 14, 14)


def test_the_average_is_over_samples_and_heads():
    torch.manual_seed(0)
    surrogate = build_surrogate(PROBLEM, "factformer", head_dim=8, **SIZES).eval()
    (row, *_) = analyse_attention(surrogate, contexts()).summary["kernels"]
    curves = []
    for context in contexts():
        ((attention, u, grid, _),) = record_attention(surrogate, Batch(context))[0]
        kernel = attention.axial_kernels(u, grid)[0]
        curves.append(cumulative_energy(torch.linalg.svdvals(kernel.double())).flatten(0, 1))
    mean = torch.cat(curves).mean(0)
    torch.testing.assert_close(torch.tensor(row["cumulative_energy"], dtype=torch.float64), mean)
    assert row["fraction_for_energy"] == fraction_for_energy(mean)


@pytest.mark.parametrize("model", ["linear_attention", "galerkin_transformer"])
def test_full_attention_is_decomposed_without_its_kernel(model):
    torch.manual_seed(0)
    options = SIZES if model == "linear_attention" else {"dim": 8, "depth": 2, "heads": 2, "coarsening": 1}
    surrogate = build_surrogate(PROBLEM, model, **options).eval()
    rows = analyse_attention(surrogate, contexts(1)).summary["kernels"]
    assert [(row["layer"], row["axis"]) for row in rows] == [(0, None), (1, None)]
    assert rows[0]["num_singular_values"] == 140
    ((attention, u, grid, _),) = record_attention(surrogate, Batch(contexts(1)[0]))[0]
    queries, keys = full_factors(attention, u, grid)
    full = cumulative_energy(torch.linalg.svdvals((queries @ keys.mT).double())).mean((0, 1))
    torch.testing.assert_close(torch.tensor(rows[0]["cumulative_energy"], dtype=torch.float64), full, rtol=0, atol=1e-5)


def test_linear_attention_factors_give_its_kernel():
    torch.manual_seed(0)
    surrogate = build_surrogate(PROBLEM, "linear_attention", **SIZES).eval()
    ((attention, u, grid, _),) = record_attention(surrogate, Batch(contexts(1)[0]))[0]
    queries, keys = full_factors(attention, u, grid)
    torch.testing.assert_close(queries @ keys.mT, attention.kernel(u, grid), rtol=1e-4, atol=1e-6)


def test_a_model_without_attention_says_so():
    surrogate = build_surrogate(PROBLEM, "dilated_resnet", dim=8, depth=1)
    with pytest.raises(UserError, match="'dilated_resnet' has no attention kernels"):
        analyse_attention(surrogate, contexts())


def test_no_samples_is_an_error():
    with pytest.raises(UserError, match="no samples"):
        analyse_attention(build_surrogate(PROBLEM, head_dim=8, **SIZES), [])


def test_a_softmax_has_no_bound_of_rank_but_the_points():
    surrogate = build_surrogate(PROBLEM, "factformer", head_dim=8, softmax=True, **SIZES)
    rows = analyse_attention(surrogate, contexts(1)).summary["kernels"]
    assert [row["rank_bound"] for row in rows[:2]] == [10, 14]
