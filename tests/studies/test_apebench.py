"""APEBench's metric, its sizes, and a run of its target."""

import math

import pytest
import torch

from factformer.studies.apebench.emulation import SIZES, geometric_mean, state_errors
from factformer.studies.apebench.scenarios import SCENARIOS
from factformer.studies.cells import Emulating, Quoted
from factformer.studies.targets import find_target


def test_the_metric_is_the_formula_written_out():
    generator = torch.Generator().manual_seed(0)
    truth, found = (torch.randn(3, 4, 5, 6, 2, generator=generator, dtype=torch.float64) for _ in range(2))
    each = []
    for state in range(4):
        total = 0.0
        for sample in range(3):
            for channel in range(2):
                wanted, got = truth[sample, state, ..., channel], found[sample, state, ..., channel]
                total += math.sqrt(float(((got - wanted) ** 2).mean()) / float((wanted**2).mean()))
        each.append(total / 3)
    errors = state_errors(found, truth)
    assert errors.tolist() == pytest.approx(each, rel=1e-12)
    assert geometric_mean(errors) == pytest.approx(math.prod(each) ** (1 / 4), rel=1e-12)


def test_sizes_are_those_of_the_benchmark():
    whole = SIZES["paper"]
    assert (whole.trajectories, whole.states["train"], whole.updates) == ({"train": 50, "test": 30}, 51, 10_000)
    assert whole.states["test"] == 101  # the metric counts 100 predicted states


def test_the_target_has_every_scenario_and_quotes_what_was_read_off():
    cells = find_target("apebench", "paper").cells
    assert {cell.work.scenario for cell in cells if isinstance(cell.work, Emulating)} == set(SCENARIOS)
    quoted = {cell.row: cell.paper for cell in cells if isinstance(cell.work, Quoted)}
    assert quoted["2d_diff_ks, ResNet of APEBench"] == 0.20
    assert len(quoted) == 8
    assert {SCENARIOS[work.scenario].num_axes for work in find_target("apebench-1d", "paper").works} == {1}


@pytest.mark.thirdparty
def test_the_metric_is_exponaxs():
    jax, exponax = pytest.importorskip("jax"), pytest.importorskip("exponax")
    jax.config.update("jax_enable_x64", True)
    generator = torch.Generator().manual_seed(0)
    truth, found = (torch.randn(3, 1, 6, 6, 2, generator=generator, dtype=torch.float64) for _ in range(2))
    theirs = exponax.metrics.mean_metric(
        exponax.metrics.nRMSE, *(jax.numpy.asarray(v[:, 0].movedim(-1, 1).numpy()) for v in (found, truth))
    )
    assert float(state_errors(found, truth)[0]) == pytest.approx(float(theirs), rel=1e-12)
