"""Small surrogates to serve: one of a flow with a solver, one with every part that a batch can have, a steady one."""

from __future__ import annotations

from dataclasses import replace

import torch

from factformer import Batch, Field, Grid, Problem, build_surrogate
from factformer.engine import attach
from factformer.pdes import find_pde

SMALL = {"dim": 8, "depth": 1, "heads": 2, "head_dim": 4, "kernel_dim": 4}
STEPS = {"marching_steps": 1}


def small_surrogate(problem, **options):
    """An untrained surrogate whose roll-outs stay finite."""
    torch.manual_seed(0)
    surrogate = build_surrogate(problem, "factformer_plus", **SMALL, **options).eval()
    attach(surrogate)
    return surrogate


def flow():
    problem = replace(find_pde("kolmogorov_flow").problem(24), num_context_frames=2, horizon=4)
    surrogate = small_surrogate(problem, **STEPS)
    parameters = {"reynolds": 100.0, "forcing_wavenumber": 2}
    surrogate.provenance = {"problem": "kolmogorov_flow", "data_parameters": parameters}
    return surrogate


def everything():
    """Two state fields, static fields, forcing, parameters and a mask on a plane with walls."""
    return small_surrogate(
        Problem(
            "channel",
            Grid((10, 8), (2.0, 1.0), (True, False), "cells"),
            (Field("velocity", 2), Field("pressure")),
            (Field("depth"),),
            (Field("wind"),),
            ("reynolds",),
            frame_dt=0.5,
            num_context_frames=2,
            horizon=3,
            boundary="zero",
            masked=True,
        ),
        **STEPS,
    )


def obstacles():
    """Flow past bodies, for viscosities on a log scale."""
    problem = replace(find_pde("obstacle_flow").problem(16), num_context_frames=2, parameters=("viscosity",))
    surrogate = small_surrogate(problem, **STEPS)
    for name, value in (("mean", -4.0), ("log", 1.0), ("min", 0.01), ("max", 0.04)):
        getattr(surrogate.normalizer, f"parameters_{name}").fill_(value)
    parameters = {"viscosity": "0.01..0.04:log", "penalisation": 0.025}
    surrogate.provenance = {"problem": "obstacle_flow", "data_parameters": parameters}
    return surrogate


def steady():
    problem = find_pde("darcy_flow").problem(16)
    surrogate = small_surrogate(problem)
    surrogate.provenance = {"problem": "darcy_flow", "data_parameters": {}}
    return surrogate


def full_batch(surrogate, num_frames=1, size=1, seed=0):
    """Random values for every part of a surrogate's problem, as arrays by name."""
    problem, generator = surrogate.problem, torch.Generator().manual_seed(seed)
    shape, frames = problem.grid.shape, problem.num_context_frames

    def draw(*sizes):
        return torch.rand(*sizes, generator=generator)

    parts = {
        "context": draw(size, frames, *shape, problem.num_state_channels) if frames else None,
        "static": draw(size, *shape, problem.num_static_channels) if problem.static else None,
        "forcing": draw(size, frames + num_frames, *shape, problem.num_forcing_channels) if problem.forcing else None,
        "parameters": draw(size, len(problem.parameters)) if problem.parameters else None,
        "mask": draw(size, *shape) > 0.2 if problem.masked else None,
    }
    return Batch(**parts)


def as_arrays(batch):
    return {name: part.numpy() for name, part in zip(batch.names, batch.tensors, strict=True)}
