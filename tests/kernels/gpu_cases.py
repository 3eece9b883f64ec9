"""Networks on a GPU against themselves in float64, way by way.

python tests/kernels/gpu_cases.py NAME      the case at a width that the kernels do not take, where stages are compiled

That runs in a process of its own: the checks of shapes that tests are run with stand in the way of the compiler.
"""

import copy
import json
import math
import sys
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from factformer import Field, Grid, Problem, build_surrogate, engine, metrics
from factformer.batch import Batch


@dataclass(frozen=True)
class Case:
    grid: Grid
    batch_size: int = 1
    model: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, Any] = field(default_factory=dict)
    """Of the problem, beside its one field."""


PLUS = {"model": "factformer_plus"}
PERIODIC_PLANE = Grid((40, 36), 2 * math.pi, True)
ALL = {
    "parameters": ("reynolds", "wavenumber"),
    "masked": True,
    "forcing": (Field("inflow"),),
    "static": (Field("depth"),),
}
CASES = {
    "line in the low-rank order": Case(Grid(300, 2 * math.pi, True), 3, {"heads": 4, "kernel_dim": 64}),
    "plane": Case(PERIODIC_PLANE, 2, {"heads": 8, "kernel_dim": 128}),
    "long plane in the low-rank order": Case(Grid((300, 60), 2 * math.pi, True), 1, {"heads": 4, "kernel_dim": 64}),
    "bounded plane": Case(Grid((33, 47), 1.0, False), 1, {"heads": 3, "kernel_dim": 128}),
    "box": Case(Grid((20, 17, 24), 2 * math.pi, True), 1, {"heads": 6, "kernel_dim": 192}),
    "plane with a local branch": Case(Grid((40, 36), 2 * math.pi, (True, False)), 2, PLUS),
    "box with a local branch": Case(Grid((12, 17, 20), 2 * math.pi, True), 1, {**PLUS, "heads": 6}),
    "plane of patches": Case(Grid((80, 72), 2 * math.pi, True), 2, {**PLUS, "patch": 2}),
    "box of patches": Case(Grid((24, 20, 32), 2 * math.pi, True), 1, {**PLUS, "heads": 6, "patch": 2}),
    "four axes of patches": Case(Grid((8, 12, 8, 10), 2 * math.pi, True), 1, {**PLUS, "heads": 4, "patch": 2}),
    "two levels": Case(PERIODIC_PLANE, 2, {**PLUS, "levels": 2, "depth": 3}),
    "plane with bodies, parameters and forcing": Case(Grid((40, 36), 1.0, (True, False)), 2, PLUS, ALL),
    "box with bodies, parameters and forcing": Case(Grid((20, 17, 24), 2 * math.pi, True), 1, {"heads": 6}, ALL),
    "narrow plane": Case(PERIODIC_PLANE, 2, {**PLUS, "dim": 32, "heads": 2, "head_dim": 16, "kernel_dim": 16}),
    "narrow box around bodies": Case(
        Grid((12, 10, 8), 1.0, False), 2, {**PLUS, "dim": 48, "heads": 2, "head_dim": 8, "kernel_dim": 24}, ALL
    ),
    "patches around bodies": Case(Grid((48, 40), 1.0, False), 2, {**PLUS, "patch": 2}, ALL),
}
STEPS, CONTEXT = 3, 4


def surrogate_for(case):
    torch.manual_seed(0)
    boundary = "periodic" if all(case.grid.periodic) else "zero"
    problem = Problem("test", case.grid, (Field("a", 1),), num_context_frames=CONTEXT, boundary=boundary, **case.parts)
    surrogate = build_surrogate(problem, marching_steps=STEPS, **{"depth": 2, **case.model})
    with torch.no_grad():  # fresh kernels are tiny: make all parts count
        for parameter in surrogate.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    return surrogate.cuda()


def batch_for(case, surrogate):
    """A random batch with all the parts of the problem; a body in the middle of each masked sample."""
    problem, rows, shape = surrogate.problem, case.batch_size, case.grid.shape
    mask = None
    if problem.masked:
        mask = torch.ones(rows, *shape, dtype=torch.bool, device="cuda")
        mask[(slice(None), *(slice(size // 3, size // 2) for size in shape))] = False
    return Batch(
        torch.randn(rows, CONTEXT, *shape, 1, device="cuda"),
        torch.randn(rows, *shape, 1, device="cuda") if problem.static else None,
        torch.randn(rows, CONTEXT + STEPS, *shape, 1, device="cuda") if problem.forcing else None,
        torch.randn(rows, len(problem.parameters), device="cuda") if problem.parameters else None,
        mask,
    )


def relative(a, b):
    return float(((a.double() - b.double()).norm() / b.double().norm()).detach())


def run(surrogate, batch, target, *, bf16):
    with torch.autocast("cuda", torch.bfloat16, enabled=bf16):
        prediction = engine.predict(surrogate, batch, STEPS, surrogate.problem.grid)
    loss = metrics.loss(prediction, target, surrogate.problem.state_slices, batch.mask)
    grads = torch.autograd.grad(loss, list(surrogate.parameters()), allow_unused=True)
    return prediction, torch.cat([g.double().flatten() for g in grads if g is not None])


def errors_of(case, limits=None):
    """Mean relative errors of predictions and gradients against float64, by way of execution."""
    surrogate = surrogate_for(case)
    exact_surrogate = copy.deepcopy(surrogate).double()
    errors = {"fused": [], "plain": [], "single": []}
    # The products of PyTorch itself are exact by default, those of cuDNN are not.
    with torch.backends.cudnn.flags(allow_tf32=False):
        for _ in range(3):
            batch = batch_for(case, surrogate)
            target = torch.randn(case.batch_size, STEPS, *case.grid.shape, 1, device="cuda")
            engine.attach(exact_surrogate, "off")
            exact = run(exact_surrogate, batch.to(torch.float64), target.double(), bf16=False)
            for way, mode, bf16 in (("fused", "auto", True), ("plain", "off", True), ("single", "off", False)):
                engine.attach(surrogate, mode, limits=limits)
                got = run(surrogate, batch, target, bf16=bf16)
                errors[way].append([relative(a, b) for a, b in zip(got, exact, strict=True)])
    return {way: torch.tensor(found).mean(0).tolist() for way, found in errors.items()}


def wide(case):
    """The same with more channels than fit the kernels."""
    return replace(case, model={**case.model, "dim": 256, "heads": 4, "kernel_dim": 128})


if __name__ == "__main__":
    found = errors_of(wide(CASES[sys.argv[1]]))
    print(json.dumps({"errors": found, "failed": sorted(engine._failed)}))
