"""The data of a campaign, solved in memory: one dataset at a time, at every resolution that is still to come."""

from __future__ import annotations

import copy
import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from factformer import recipes
from factformer.data.agreement import changed_problem
from factformer.data.dataset import Dataset
from factformer.data.generate.simulated import Splits, simulate_splits
from factformer.pdes import Preset
from factformer.studies.cells import Scale, Training
from factformer.studies.scales import DATA_SEED, Size, size_of
from factformer.training.experiment.definition import Experiment
from lab.campaign.datasets import Data
from lab.campaign.entries import Entry

STORAGE = {"float32": torch.float32, "bfloat16": torch.bfloat16}
TINY_FRAMES = 12
"""Frames of a tiny trajectory, times the longest stride of those that see it."""


@dataclass
class Solved:
    """Solves what entries are trained and judged on, and keeps the last dataset."""

    data: Mapping[str, Data]
    scale: Scale
    device: torch.device
    tell: Callable[[str], None]
    made: tuple[str, dict[int, Splits]] | None = None

    def splits(self, entry: Entry, pending: Sequence[Entry]) -> dict[int, Splits]:
        """The data of an entry at every resolution that is still to come; the earlier dataset is given up."""
        name = entry.data_name
        if self.made is not None and self.made[0] == name:
            return self.made[1]
        self.made = None
        gc.collect()
        others = [other for other in pending if other.data_name == name]
        sizes = {size for other in others for size in (self.preset(other).resolution, *self.others(other))}
        wanted = self.data[name]
        held_out = sorted({other.split for other in others})
        counts = {"train": wanted.train, **dict.fromkeys(held_out, wanted.test)}
        preset = self.preset(entry)
        if self.scale != "paper" and preset.num_frames > 1:
            preset = replace(preset, num_frames=TINY_FRAMES * max(other.longest_stride for other in others))
        made = self._solve(entry.run, name, preset, counts, sorted(sizes))
        self.made = (name, made)
        return made

    def judged(self, entry: Entry, name: str) -> Dataset:
        """Test flows of another dataset, at the resolution of the entry; its statistics are of a few flows."""
        wanted = self.data[name]
        counts = {"train": min(wanted.train, 4), "test": wanted.test}
        size = self.preset(entry).resolution
        return self._solve(entry.run, name, self.preset(entry, name), counts, [size])[size]["test"]

    def _solve(
        self, run: Training, name: str, preset: Preset, counts: Mapping[str, int], sizes: Sequence[int]
    ) -> dict[int, Splits]:
        wanted, began = self.data[name], time.monotonic()
        made = simulate_splits(
            recipes.build(run.recipe).problem,
            preset,
            counts,
            sizes,
            seed=DATA_SEED,
            device=self.device,
            storage=STORAGE[wanted.storage],
            batch_size=wanted.batch_size,
        )
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        number, grids = " + ".join(map(str, counts.values())), ", ".join(map(str, sizes))
        self.tell(f"{name}: {number} solutions at {grids} in {time.monotonic() - began:.1f} s")
        scope = self.scope(run)
        if scope.num_context_frames is not None:
            changes = {"num_context_frames": scope.num_context_frames, "horizon": scope.num_frames}
            for split in (split for splits in made.values() for split in splits.values()):
                split.problem = changed_problem(split.problem, **changes)
        return made

    def seen(self, splits: Splits, experiment: Experiment) -> Splits:
        """The splits with the context that an experiment asks for."""
        context = experiment.data.num_context_frames
        found: Splits = {}
        for name, split in splits.items():
            found[name] = split
            if context is not None and context != split.problem.num_context_frames:
                found[name] = copy.copy(split)
                found[name].problem = changed_problem(split.problem, num_context_frames=context)
        return found

    def scope(self, run: Training) -> Size:
        return size_of(run, self.scale)

    def preset(self, entry: Entry, name: str = "") -> Preset:
        """How the dataset of an entry is made, or one that it is judged on."""
        wanted = self.data[name or entry.data_name]
        if self.scale == "paper":
            return wanted.changed(self.scope(entry.run).preset)
        # Tiny data keep what the solver is told, and their own frames.
        usual = self.scope(replace(entry.run, resolution=None)).preset
        kept = {key: value for key, value in wanted.changes.items() if key in ("parameters", "downsampling")}
        if usual.num_frames > 1:
            usual = replace(usual, num_frames=TINY_FRAMES * entry.longest_stride)
        return replace(wanted, changes=kept).changed(usual)

    def others(self, entry: Entry) -> tuple[int, ...]:
        """Further resolutions to evaluate on; a tiny grid has one half as fine."""
        if self.scale == "paper" or not entry.also:
            return entry.also
        return (1 + (self.preset(entry).resolution - 1) // 2,)
