"""Splits that are solved straight into memory, for a machine that is lent for minutes: no file in between.

The values are those that `generate` would store, and so is the fingerprint. Several resolutions are taken from one
solution, so that models trained on different grids see the same flows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from factformer.batch import Batch, moved
from factformer.data.dataset import Dataset, Selection, positions
from factformer.data.generate.plan import describe, require_storable, with_resolution
from factformer.data.generate.solve import Solver
from factformer.data.layout import Contents
from factformer.data.normalization import Normalizer
from factformer.data.statistics import Moments, merge_moments, normalizer_from
from factformer.errors import UserError
from factformer.metrics import within
from factformer.pdes import PDE, Preset, Settings, as_pde

Splits = dict[str, "SimulatedDataset"]


class SimulatedDataset(Dataset):
    """One split in the memory of the device that solved it; `read` gives float32 and leaves it there."""

    def __init__(self, contents: Contents, frames: Tensor, known: Batch, normalizer: Normalizer) -> None:
        self.problem, self.split, self.fingerprint = contents.problem, contents.split, contents.fingerprint
        self.num_trajectories, self.num_frames = contents.num_trajectories, contents.num_frames
        self.frames, self.parts = frames, known
        self._provenance, self._normalizer = dict(contents.provenance), normalizer

    @property
    def provenance(self) -> dict[str, Any]:
        return self._provenance

    def read(self, trajectories: Selection, frames: slice = slice(None), part: str = "state") -> Tensor:
        chosen = positions(trajectories, self.num_trajectories)
        values = (self.frames if part == "state" else getattr(self.parts, part))[chosen]
        if part in ("state", "forcing"):
            values = values[:, list(range(*frames.indices(self.num_frames)))]
        return moved(values, torch.float32)

    def normalizer(self) -> Normalizer:
        return self._normalizer

    def known_normalizer(self) -> Normalizer:
        return self._normalizer

    def resident(self, device: torch.device, storage: torch.dtype) -> Tensor | None:
        return self.frames if (self.frames.device, self.frames.dtype) == (device, storage) else None


@torch.no_grad()
def simulate_splits(
    pde: str | PDE,
    preset: Preset,
    counts: Mapping[str, int],
    resolutions: Sequence[int] = (),
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    storage: torch.dtype = torch.float32,
    batch_size: int | None = None,
) -> dict[int, Splits]:
    """Every split of ``counts`` at every resolution (by default that of the preset), the training split first.

    ``storage`` is the number format of the training frames; what is evaluated on stays in float32.
    """
    if "train" not in counts:
        raise UserError("statistics come from the training split: simulate it with the others")
    equation = as_pde(pde)
    plans = {size: with_resolution(equation, preset, size, None) for size in resolutions or (preset.resolution,)}
    # One solution for all: the finest of the solver's grids that the resolutions ask for.
    finest = max(plan.simulation_resolution for plan in plans.values())
    plans = {size: with_resolution(equation, preset, size, finest) for size in plans}
    at_once = batch_size or preset.batch_size
    settings = Settings.parse(equation, preset.parameters)
    require_storable(equation, settings)
    solver = Solver(equation, replace(preset, simulation_resolution=finest), settings, torch.device(device))
    found: dict[int, Splits] = {resolution: {} for resolution in plans}
    normalizers: dict[int, Normalizer] = {}
    for split in ("train", *(name for name in counts if name != "train")):
        described = {
            resolution: describe(equation, plan, settings, split, counts[split], seed, "float32")
            for resolution, plan in plans.items()
        }
        kind = storage if split == "train" else torch.float32
        memory = {size: _Memory(contents, torch.device(device), kind) for size, contents in described.items()}
        seeds = next(iter(described.values())).seeds
        for first in range(0, counts[split], at_once):
            batch = range(first, min(first + at_once, counts[split]))
            sinks = [_memory_sink(place, batch) for place in memory.values()]
            solver.solve(seeds[batch.start : batch.stop], sinks)
        for resolution, place in memory.items():
            if split == "train":
                normalizers[resolution] = place.normalizer()
            found[resolution][split] = SimulatedDataset(
                place.contents, place.frames, place.known, normalizers[resolution]
            )
    return found


class _Memory:
    """Room for one split at one resolution, and the moments of what was put there."""

    def __init__(self, contents: Contents, device: torch.device, storage: torch.dtype) -> None:
        self.contents, problem = contents, contents.problem
        shape = (contents.num_trajectories, contents.num_frames, *problem.grid.shape)
        self.frames = torch.empty(*shape, problem.num_state_channels, dtype=storage, device=device)
        self.known, self._device = Batch(), device
        self.moments: list[dict[str, Moments]] = []

    def close(self, batch: range, frames: Tensor, known: Batch) -> None:
        """Take a batch in, whole and in float32, so that statistics do not feel the storage."""
        if not bool(torch.isfinite(frames).all()):
            bad = (~torch.isfinite(frames).flatten(1).all(1)).nonzero()[0].item()
            raise UserError(
                f"{self.contents.problem.name}: trajectory {batch.start + int(bad)} of {self.contents.split} "
                "holds NaN or infinite values; try a smaller dt or another seed"
            )
        mask = known.mask
        frames = within(frames, mask)
        if known.forcing is not None:
            known = known._replace(forcing=within(known.forcing, mask))
        if known.static is not None:
            known = known._replace(static=within(known.static.unsqueeze(1), mask).squeeze(1))
        self.frames[batch.start : batch.stop] = frames
        if not self.known.names:
            count = self.contents.num_trajectories
            self.known = known.map(lambda part: part.new_empty((count, *part.shape[1:]), device=self._device))
        for place, values in zip(self.known.tensors, known.tensors, strict=True):
            place[batch.start : batch.stop] = values
        if self.contents.split != "train":
            return
        found = {"state": _moments(frames, mask), "increment": _moments(frames.diff(dim=1), mask)}
        for part, values in zip(known.names, known.tensors, strict=True):
            if part == "static":
                found[part] = _moments(values.unsqueeze(1), mask)
            elif part != "mask":
                found[part] = _moments(values, None if part == "parameters" else mask)
        self.moments += [{kind: values[row] for kind, values in found.items()} for row in range(len(batch))]

    def normalizer(self) -> Normalizer:
        total = merge_moments(self.moments, self.contents.problem)
        mean, std = {k: v.mean for k, v in total.items()}, {k: v.std for k, v in total.items()}
        numbers = self.known.parameters
        return normalizer_from(self.contents.problem, mean, std, None if numbers is None else numbers.cpu().numpy())


@contextmanager
def _memory_sink(place: _Memory, batch: range) -> Iterator[_MemorySink]:
    sink = _MemorySink(place.contents.problem.grid.shape)
    yield sink
    place.close(batch, torch.stack(sink.frames, dim=1), sink.parts)


class _MemorySink:
    """The frames of a batch until it is whole."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape, self.frames, self.known = shape, list[Tensor](), Batch()
        self.forcing = list[Tensor]()

    def take_known(self, known: Batch) -> None:
        self.known = known.to(torch.float32, copy=True)

    def take(self, values: Tensor, forcing: Tensor | None) -> None:
        self.frames.append(values.to(torch.float32, copy=True))
        if forcing is not None:
            self.forcing.append(forcing.to(torch.float32, copy=True))

    @property
    def parts(self) -> Batch:
        """All that is known beside the frames."""
        return self.known._replace(forcing=torch.stack(self.forcing, dim=1) if self.forcing else None)


def _moments(values: Tensor, mask: Tensor | None) -> list[Moments]:
    """Moments of each trajectory of ``(trajectory, …, channel)``, on the device and in float64.

    With a mask the values are ``(trajectory, frame, *grid, channel)``, and those inside the domain count.
    """
    found = []
    for index, trajectory in enumerate(values):
        inside = trajectory if mask is None else trajectory[:, mask[index]]
        points = inside.reshape(-1, trajectory.shape[-1]).double()
        if not len(points):
            found.append(Moments.empty(points.shape[-1]))
            continue
        mean = points.mean(0)
        squares = (points - mean).square().sum(0)
        found.append(Moments(len(points), *(np.asarray(part.cpu()) for part in (mean, squares))))
    return found
