"""Where parameters should act on a network: the same training with one number per trajectory given in other ways.

    python -m lab.analyses.conditioning --out results/cpu/modulation.json

One-dimensional Burgers and advection-diffusion with a viscosity, or velocity, of each trajectory's own. The surrogate
sees one frame, which says nothing of that number. The table gives the relative L2 error of 8-frame roll-outs on unseen
trajectories with unseen values inside the range.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

import factformer
from factformer import Field, Grid, Problem
from factformer.data.dataset import ArrayDataset
from factformer.evaluation.accuracy import evaluate
from factformer.evaluation.provenance import provenance
from factformer.models import _backbone
from factformer.nn.conditions import EMBEDDING_DIM, Conditions, Modulation
from factformer.surrogate import Surrogate

POINTS, FRAMES, DT = 32, 17, 0.1
CASES = {"burgers": ("viscosity", 0.02, 0.6, True), "advection_diffusion": ("velocity", 0.3, 2.0, False)}
"""The parameter, its range, and whether it is drawn on a log scale."""


def smooth_starts(count: int, drawn: torch.Generator) -> Tensor:
    """Random waves ``(trajectory, x, 1)`` of wavenumbers 1 to 4."""
    x = Grid(POINTS, 2 * math.pi, True).axis(0).double()
    start = torch.zeros(count, POINTS, dtype=torch.float64)
    for wave in range(1, 5):
        amplitude, phase = torch.randn(2, count, 1, generator=drawn, dtype=torch.float64)
        start += amplitude / wave * torch.cos(wave * x + 2 * math.pi * phase)
    return start[..., None]


def split(pde: str, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Frames ``(trajectory, frame, x, 1)`` of smooth random starts, and the parameter of each trajectory."""
    name, low, high, log = CASES[pde]
    drawn = torch.Generator().manual_seed(seed)
    share = torch.rand(count, generator=drawn, dtype=torch.float64)
    values = low * (high / low) ** share if log else low + (high - low) * share
    start = smooth_starts(count, drawn)
    varying: dict[str, Any] = {name: values}
    frames = factformer.simulate(pde, start, FRAMES, DT, **varying)
    return frames.float(), values.float()


def dataset(pde: str, count: int, seed: int, **options: Any) -> ArrayDataset:
    frames, values = split(pde, count, seed)
    problem = Problem(
        pde, Grid(POINTS, 2 * math.pi, True), (Field("u"),), parameters=(CASES[pde][0],), frame_dt=DT, horizon=8
    )
    return ArrayDataset(frames, problem, parameters=values[:, None], **options)


class Around(nn.Module):
    """A modulation of a block's input, and one of the increment that it makes."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.inside = Modulation(dim)
        self.gate = nn.Parameter(torch.zeros(dim, EMBEDDING_DIM))


Apply = Callable[[nn.Module, Tensor, Grid, Conditions], Any]


def applied(how: str) -> Apply:
    """A replacement of what a backbone does with a modulated layer."""

    def apply(layer: Any, z: Tensor, grid: Grid, conditions: Conditions) -> Any:
        embedding = conditions.parameters
        assert embedding is not None
        part = layer.modulation
        if how == "ignored":
            return layer(z, grid, conditions)
        if how == "shift":
            shift = part(torch.zeros_like(z), embedding)
            return layer(z + shift, grid, conditions)
        if how == "branch":
            inner = part(z, embedding)
            return z + (layer(inner, grid, conditions) - inner)
        if how == "after":
            return part(layer(z, grid, conditions), embedding)
        if how == "gate":
            gate = (embedding @ part.gate.mT).reshape(len(z), *[1] * (z.ndim - 2), -1)
            out = layer(part.inside(z, embedding), grid, conditions)
            return out + gate * (out - z)
        return layer(part(z, embedding), grid, conditions)

    return apply


VARIANTS = {
    "ignored": "parameters are not used",
    "shift": "shift of each block's input",
    "block input": "scale and shift of each block's input",
    "block output": "scale and shift of each block's output",
    "branch input": "scale and shift of what the residual branch sees",
    "input and gate": "scale and shift of the input, scale of the increment",
    "inputs and end": "scale and shift of each block's input, and after the last block",
}
HOW = {
    "block input": "stream",
    "block output": "after",
    "branch input": "branch",
    "input and gate": "gate",
    "inputs and end": "stream",
}


@contextlib.contextmanager
def variant(name: str) -> Iterator[None]:
    how = HOW.get(name, name)
    kind = Around if how == "gate" else Modulation
    with (
        mock.patch.object(_backbone, "_applied", applied(how)),
        mock.patch.object(_backbone.Backbone, "modulated", lambda self, layer: _with(layer, kind(self._dim))),
        mock.patch.object(_backbone.Backbone, "is_modulated", name != "inputs and end"),
        mock.patch.object(Surrogate, "processed", _processed),
    ):
        yield


def _processed(self: Surrogate, z: Tensor, grid: Grid, conditions: Conditions) -> Tensor:
    result: Tensor = self.backbone(z, grid, conditions)
    if self.around is not None:
        result = self.around[1](result, conditions.parameters)
    return result


def _with(layer: nn.Module, modulation: nn.Module) -> nn.Module:
    layer.add_module("modulation", modulation)
    return layer


def measure(name: str, pde: str, model: str, seed: int, updates: int) -> dict[str, Any]:
    training = dataset(pde, 64, 1)
    test = dataset(pde, 32, 2, split="test", normalizer=training.normalizer())
    sizes = {"model.dim": 32, "model.depth": 2}
    sizes |= (
        {"model.heads": 4, "model.head_dim": 8, "model.kernel_dim": 16} if "former" in model else {"model.modes": 8}
    )
    began = time.perf_counter()
    with variant(name):
        surrogate = factformer.fit(
            training, model=model, updates=updates, progress=False, settings={**sizes, "training.seed": seed}
        )
        seconds = time.perf_counter() - began
        error = evaluate(surrogate, test, num_starts=2, timing=False).fields["u"].relative_l2
    return {"variant": name, "problem": pde, "model": model, "seed": seed, "relative_l2": error, "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--updates", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--models", nargs="+", default=["factformer_plus", "fno"])
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    began, rows = time.perf_counter(), []
    for pde in CASES:
        for model in options.models:
            for name in options.variants:
                for seed in range(options.seeds):
                    rows.append(measure(name, pde, model, seed, options.updates))
                    print(rows[-1], flush=True)
    result = {
        "benchmark": __doc__.split("\n")[0],
        "updates": options.updates,
        "variants": VARIANTS,
        "rows": rows,
        **provenance(seed=0, seconds=time.perf_counter() - began, device=torch.device("cpu")),
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
