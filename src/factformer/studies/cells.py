"""What a target of `reproduce` is made of: cells, and the work that fills them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from factformer.evaluation.cost import Case
from factformer.report.tables import Kind

Scale = Literal["tiny", "small", "reduced", "paper"]
SCALES: tuple[Scale, ...] = ("tiny", "reduced", "paper")
"""Of the paper's targets; a user's study may also be at the ``small`` scale of its recipe."""


@dataclass(frozen=True)
class Training:
    """Train a recipe's model under a protocol and evaluate it on the test split."""

    recipe: str
    model: str = "factformer"
    protocol: str = "latent_marching"
    resolution: int | None = None
    """Points per axis; by default those of the recipe's dataset at the scale in question."""
    settings: tuple[str, ...] = ()
    """``section.key=value`` that set this run apart from others."""
    data: str = ""
    """Folder of a user's own data; ``recipe`` is then only its name, and model and protocol may be left open."""


@dataclass(frozen=True)
class Costing:
    """Measure seconds and memory of a case."""

    case: Case


@dataclass(frozen=True)
class Looking:
    """Train as `Training` says, then analyse the attention."""

    training: Training


@dataclass(frozen=True)
class Quoted:
    """Nothing to do: a published number of a model that we do not have."""

    model: str


Work = Training | Costing | Looking | Quoted


@dataclass(frozen=True)
class Cell:
    """One number: where it stands, the work that gives it, where in the result it is, and the paper's."""

    row: str
    quantity: str
    work: Work
    path: str
    """Keys into the result of the work, with dots: ``fields.vorticity.relative_l2``."""
    paper: float | None = None
    kind: Kind = "error"
    error_path: str = ""
    """Where the standard error is, if there is one."""


@dataclass(frozen=True)
class Target:
    """A table or figure of the paper."""

    name: str
    title: str
    cells: tuple[Cell, ...]
    note: str = ""

    @property
    def works(self) -> list[Work]:
        """The work of all cells, each once, in order; training before what looks at it."""
        found: list[Work] = []
        for cell in self.cells:
            if cell.work not in found:
                found.append(cell.work)
        return found

    @property
    def trainings(self) -> list[Training]:
        """The training runs behind the cells, each once."""
        found: list[Training] = []
        for work in self.works:
            training = work.training if isinstance(work, Looking) else work
            if isinstance(training, Training) and training not in found:
                found.append(training)
        return found


Builder = Callable[[Scale], Target]
"""What makes a target at a scale."""
