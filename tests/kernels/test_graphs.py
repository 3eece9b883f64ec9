"""Recorded calls and steps where nothing can be recorded: on a CPU they must do just what the plain ones do."""

import copy
import pickle

import torch
from torch import nn

from factformer.kernels.graphs import CallGraphs, StepGraphs, wanted


def test_nothing_is_recorded_on_a_cpu():
    assert not wanted(torch.zeros(3), 3)


def test_a_step_fills_the_gradients_anew_each_time():
    torch.manual_seed(0)
    model = nn.Linear(3, 2)

    def compute(x, scale):
        loss = scale * model(x).square().mean()
        return loss, {"mean": x.mean().detach()}

    step = StepGraphs(compute, list(model.parameters()))
    for scale in (1.0, 1.0, 2.0):
        x = torch.randn(5, 3)
        loss, terms = step(scale, x, num_points=5, scale=scale)
        expected = scale * model(x).square().mean()
        grads = torch.autograd.grad(expected, list(model.parameters()))
        assert torch.equal(loss, expected.detach())
        assert not loss.requires_grad
        assert torch.equal(terms["mean"], x.mean())
        for parameter, grad in zip(model.parameters(), grads, strict=True):
            assert torch.equal(parameter.grad, grad)


def test_copies_of_a_model_start_without_records():
    calls = CallGraphs(capacity=3)
    calls.seen.add("shape")
    for duplicate in (copy.deepcopy(calls), pickle.loads(pickle.dumps(calls))):
        assert duplicate.capacity == 3
        assert not duplicate.seen
