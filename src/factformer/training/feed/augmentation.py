"""Random symmetries of the PDE applied to training windows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from factformer import catalog
from factformer.batch import Window
from factformer.config import Config
from factformer.data.dataset import Dataset
from factformer.errors import UserError
from factformer.pdes import PDE, Settings, find_pde
from factformer.problem import Problem, channel_slices
from factformer.training.feed.draws import generators


class Augmentation:
    """A random symmetry on each sample, drawn from (seed, update, place in the batch) alone."""

    def __init__(self, problem: str, dataset: Dataset, seed: int) -> None:
        if problem not in catalog.names("pdes"):
            raise UserError(
                f"training.augment=true needs the symmetries of a PDE of the catalog and {problem!r} is none; "
                "set training.augment=false"
            )
        self.pde = find_pde(problem)
        if type(self.pde).augment is PDE.augment:
            raise UserError(
                f"training.augment=true needs symmetries and {problem} defines none; set training.augment=false, or "
                f"write `augment` of {type(self.pde).__name__}"
            )
        self.grid = dataset.problem.grid
        self.seed = seed
        self.places, self.num_channels = _places(self.pde, dataset.problem)
        # What is symmetric depends on what the data were made with, which those of others may not tell.
        made_with = dataset.provenance.get("parameters", {})
        unknown = [name for name in self.pde.symmetry_parameters if name not in made_with]
        if unknown:
            raise UserError(
                f"training.augment=true: what is symmetric depends on {', '.join(unknown)} of {problem}, which the "
                f"data do not tell; convert them with --set parameters.{unknown[0]}=VALUE or set training.augment=false"
            )
        self.settings = Settings.parse(self.pde, made_with)
        self.names = dataset.problem.parameters

    def __call__(self, window: Window, update: int, slots: Sequence[int]) -> Window:
        def drawn() -> list[torch.Generator]:
            return generators("symmetry", self.seed, update, slots)

        frames, known = window
        parameters = self.settings.shared
        if known.parameters is not None:
            parameters = self.settings.of(self.names, known.parameters)
        if known.mask is not None:
            known = known._replace(mask=self._moved_mask(known.mask, drawn(), parameters))
        if known.static is None and known.forcing is None:
            return Window(self._moved(frames, drawn(), parameters), known)
        # All fields move together, side by side in the channels; parameters have no place to be moved from.
        beside = [] if known.static is None else [known.static.unsqueeze(1).expand(*frames.shape[:-1], -1)]
        fields = [*beside, frames, *([] if known.forcing is None else [known.forcing])]
        whole = self._moved(torch.cat(fields, dim=-1), drawn(), parameters)
        moved = list(whole.split([part.shape[-1] for part in fields], dim=-1))
        if known.forcing is not None:
            known = known._replace(forcing=moved.pop())
        if known.static is not None:
            known = known._replace(static=moved.pop(0)[:, 0])
        return Window(moved[0], known)

    def _moved_mask(self, mask: Tensor, drawn: list[torch.Generator], parameters: Config) -> Tensor:
        """A symmetry may turn the sign of a field or exchange fields, but moves the points of all alike."""
        inside = mask.float()[:, None, ..., None].expand(-1, 1, *mask.shape[1:], self.num_channels)
        return self.pde.augment(inside, self.grid, drawn, parameters)[:, 0, ..., 0].abs() > 0.5

    def _moved(self, frames: Tensor, drawn: list[torch.Generator], parameters: Config) -> Tensor:
        if self.places == list(range(self.num_channels)):
            return self.pde.augment(frames, self.grid, drawn, parameters)
        whole = frames.new_zeros(*frames.shape[:-1], self.num_channels)
        whole[..., self.places] = frames
        return self.pde.augment(whole, self.grid, drawn, parameters)[..., self.places]


def _places(pde: PDE, problem: Problem) -> tuple[list[int], int]:
    """Where the channels of ``problem`` stand among those of the PDE, and how many it has.

    A dataset may hold fewer fields, or in another order; symmetries turn components by their places.
    """
    whole = pde.problem(problem.grid.shape)
    own = [*whole.static, *whole.state, *whole.forcing]
    slices = channel_slices(own)
    places: list[int] = []
    for field in [*problem.static, *problem.state, *problem.forcing]:
        if field not in own:
            known = ", ".join(f"{one.name!r} ({one.num_channels})" for one in own)
            raise UserError(
                f"training.augment=true: {field.name!r} with {field.num_channels} channels is no field of {pde.name}, "
                f"which has {known}; set training.augment=false"
            )
        places += range(slices[field.name].start, slices[field.name].stop)
    return places, sum(field.num_channels for field in own)
