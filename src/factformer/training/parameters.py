"""The size of a model, counted without making it."""

from __future__ import annotations

from torch._subclasses.fake_tensor import FakeTensorMode

from factformer.protocols import build_protocol
from factformer.surrogate import build_surrogate
from factformer.training.experiment.definition import Experiment
from factformer.training.feed.steps import with_step
from factformer.training.launch import wanted_problem


def count_parameters(experiment: Experiment) -> int:
    """Trainable numbers of the surrogate that an experiment trains; a complex one counts twice.

    Half a billion weights need not be allocated to be counted: fake tensors carry shapes alone.
    """
    problem = wanted_problem(experiment)
    if experiment.protocol.several_steps:
        problem = with_step(problem)
    steps = build_protocol(experiment.protocol, problem).steps_per_call
    with FakeTensorMode():
        return build_surrogate(problem, experiment.model, marching_steps=steps).num_parameters
