"""What a PDE is: its parameters, fields and grid, its initial states, the solution in time, and its symmetries.

How datasets of it are made (`Preset`) and what is learned from them (`Task`) are beside it, in ``presets.py``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from jaxtyping import Float
from torch import Tensor

from factformer.batch import Batch
from factformer.config import Config, unknown_name
from factformer.errors import UserError
from factformer.grid import Grid
from factformer.pdes._common.presets import Preset, Task
from factformer.pdes._common.symmetry import Generators
from factformer.problem import Boundary, Field, Problem, num_channels

Frames = Float[Tensor, "batch frame *grid channel"]
State = Float[Tensor, "batch *grid channel"]
Symmetries = Mapping[str, Callable[[Frames], Frames]]


class PDE(ABC):
    """One equation. The file ``pdes/<name>.py`` defines a subclass and binds an object of it to ``pde``.

    A user's own may be defined anywhere; `simulate` and `generate` take the object.
    """

    name: ClassVar[str]
    parameters: ClassVar[type[Config]]
    """Numbers and choices of the equation and its solver, each with a default."""
    varying: ClassVar[tuple[str, ...]] = ()
    """Parameters that may have another value in each trajectory; the others are the same for all."""

    state: ClassVar[tuple[Field, ...]]
    """The fields that a frame holds, in channel order."""
    static: ClassVar[tuple[Field, ...]] = ()
    """Fields that are known once per trajectory. An equation without time is solved from them."""
    forcing: ClassVar[tuple[Field, ...]] = ()
    """Fields that are known for every frame, past and future."""
    masked: ClassVar[bool] = False
    """Whether some points may lie outside the domain; each trajectory has a mask of its own."""
    boundary: ClassVar[Boundary] = "periodic"
    dimensions: ClassVar[tuple[int, ...]] = (2,)
    """How many axes the equation may have; the first is the default."""

    vectorized: ClassVar[bool] = False
    """Whether `frames` takes a varying parameter as a tensor ``(batch,)`` and solves all trajectories at once."""
    exact_in_batch: ClassVar[bool] = True
    """Whether a trajectory then has the bits that it has alone; otherwise that is done on a GPU only."""
    cuttable: ClassVar[bool] = False
    """Whether states may be parts of fields that are cut over processes. Then `sample_initial` takes a grid that is a
    part (`factformer.numerics.pencils`), and `frames` and `downsample` take one more argument, ``grid``: what the
    states are on."""
    num_initial_channels: ClassVar[int | None] = None
    """Channels of an initial state; by default those of the state."""
    initial_kinds: ClassVar[tuple[str, ...]] = ("default",)
    downsamplings: ClassVar[tuple[str, ...]] = ()
    """Ways from the solver's grid to a coarser stored one; the first is the default."""
    symmetry_parameters: ClassVar[tuple[str, ...]] = ()
    """Parameters that decide what is symmetric: data that do not tell them cannot be augmented."""

    task: ClassVar[Task] = Task()
    presets: ClassVar[Mapping[str, Preset]] = {}

    def __new__(cls, *args: Any, **options: Any) -> Self:
        cls.require_complete()
        return super().__new__(cls)

    @classmethod
    def require_complete(cls) -> None:
        """Raise where the class lacks what nothing can stand in for, before anything is made with it."""
        if cls.starts is PDE.starts and cls.sample_initial is PDE.sample_initial:
            raise UserError(f"the class {cls.__name__} defines neither `starts` nor `sample_initial`: random starts")

    @abstractmethod
    def grid(self, shape: Sequence[int]) -> Grid:
        """The box with so many points along each axis."""

    def grid_of(self, shape: Sequence[int], parameters: Config) -> Grid:
        """The same for these parameters, where they decide the size of the box."""
        return self.grid(shape)

    def shape(self, resolution: int) -> tuple[int, ...]:
        """Points along each axis that ``resolution`` stands for; by default the same on all of them."""
        return (resolution,) * self.dimensions[0]

    def shape_in(self, plan: Preset, resolution: int | None = None) -> tuple[int, ...]:
        """Points along each axis of the data of ``plan``, at its own resolution or another."""
        size = plan.resolution if resolution is None else resolution
        if plan.proportions is not None:
            return tuple(size * times for times in plan.proportions)
        return self.shape(size) if plan.num_axes is None else (size,) * plan.num_axes

    def initial_channels(self, num_axes: int) -> int:
        """Channels of an initial state on so many axes."""
        return num_channels(self.fields(num_axes)) if self.num_initial_channels is None else self.num_initial_channels

    def restart_channels(self, num_axes: int) -> int:
        """Channels of a state from which a solution goes on, which `simulate` takes like a start."""
        return self.initial_channels(num_axes)

    def fields(self, num_axes: int) -> tuple[Field, ...]:
        """`state` on so many axes; a vector has a channel for each."""
        return self.state

    @property
    def steady(self) -> bool:
        """Whether the equation has no time: it is solved from its static fields."""
        return self.task.num_context_frames == 0

    @property
    def conditions(self) -> tuple[str, ...]:
        """What an equation in time is given beside its start, of ``static``, ``forcing`` and ``mask``."""
        there = (("static", self.static), ("forcing", self.forcing), ("mask", self.masked))
        return () if self.steady else tuple(name for name, has in there if has)

    def problem(self, resolution: int | Sequence[int], parameters: Config | None = None) -> Problem:
        """Fields, grid and task, at ``resolution`` points or on a grid of this shape, for data of these parameters."""
        shape = self.shape(resolution) if isinstance(resolution, int) else tuple(resolution)
        if len(shape) not in self.dimensions:
            known = " or ".join(map(str, self.dimensions))
            raise UserError(f"{self.name} has {known} axes, got the shape {shape}")
        return Problem(
            self.name,
            self.grid(shape) if parameters is None else self.grid_of(shape, parameters),
            self.fields(len(shape)),
            self.static,
            self.forcing,
            masked=self.masked,
            frame_dt=self.task.frame_dt,
            num_context_frames=self.task.num_context_frames,
            horizon=self.task.horizon,
            boundary=self.boundary,
        )

    def sample_initial(
        self,
        grid: Grid,
        generators: Sequence[torch.Generator],
        *,
        dtype: torch.dtype,
        device: torch.device | str,
        initial: str | None = None,
    ) -> State:
        """Random initial states, one per (CPU) generator, each a function of its generator alone.

        ``initial`` names one of `initial_kinds`; the first is the default. An equation overrides this, or `starts`.
        """
        like = torch.empty(0, dtype=dtype, device=device)
        return self.starts(grid, generators, self.choose_initial(initial), like)

    def starts(self, grid: Grid, generators: Sequence[torch.Generator], kind: str, like: Tensor) -> State:
        """What `sample_initial` gives for one of `initial_kinds`, with the number format and device of ``like``."""
        raise NotImplementedError

    def start_for(self, initial: State, parameters: Config) -> State:
        """A random start as it is with these parameters; by default it is the same for all.

        A varying parameter may be a tensor ``(batch,)``.
        """
        return initial

    def sample_known(
        self,
        grid: Grid,
        generators: Sequence[torch.Generator],
        num_frames: int,
        frame_dt: float,
        *,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> Batch:
        """What an equation in time is given beside its start: the parts that `conditions` names, drawn at random.

        It is drawn before the start and from the same generators. ``forcing`` has ``num_frames`` frames.
        """
        return Batch()

    @abstractmethod
    def frames(self, initial: State, num_frames: int, frame_dt: float, parameters: Config) -> Iterator[State]:
        """Frames 0 (the initial state), 1, … at intervals ``frame_dt``, each holding all output fields.

        An equation with `conditions` takes a `Batch` of them as one more argument, ``known``.
        """

    def downsample(self, frames: Frames, shape: Sequence[int], method: str | None = None) -> Frames:
        """Frames of the solver's grid on the stored, coarser one; ``method`` is one of `downsamplings`."""
        raise ValueError(f"{self.name} is stored on the solver's grid")

    def coarsened(self, frames: Frames, shape: Sequence[int], method: str | None = None) -> Frames:
        """Frames on a coarser grid of the solver, to compare there or go on from; by default as they are stored."""
        return self.downsample(frames, shape, method)

    def why_not_stored(self, parameters: Config) -> str:
        """Why frames made with ``parameters`` are not those of `problem` at its points; empty where they are."""
        return ""

    def why_not_solved(self, shape: Sequence[int], parameters: Config) -> str:
        """Why a grid of ``shape`` is too coarse for ``parameters``, whatever the start; empty where it is not.

        A varying parameter may be a tensor ``(batch,)``. `simulate` and `generate` ask before they solve.
        """
        return ""

    def symmetries(self, grid: Grid, parameters: Config | None = None) -> Symmetries:
        """Maps by name that carry solutions to solutions (a member or two of each kind)."""
        return {}

    def reductions(self, frames: Frames, grid: Grid) -> Mapping[str, Tensor]:
        """What readers look at beside the fields, by name: integrals over some axes, numbers of each frame.

        Each is ``(batch, frame, *grid, 1)`` with one point along axes that it does not depend on: one point along all
        of them is a number.
        """
        return {}

    def augment(self, frames: Frames, grid: Grid, generator: Generators, parameters: Config | None = None) -> Frames:
        """A random symmetry applied to each sample of a batch of windows; a new tensor.

        It is drawn from one ``generator`` for all samples, or from one for each of them.
        ``parameters`` are those of the data where they decide what is symmetric (default: the PDE's own).
        Training with `training.augment` refuses a PDE that leaves this as it is.
        """
        return frames

    def choose_downsampling(self, method: str | None) -> str:
        """The way to the stored grid that is meant by ``method``; an unknown one lists the choices."""
        if method is None:
            return self.downsamplings[0]
        if method not in self.downsamplings:
            if not self.downsamplings:
                raise UserError(f"{self.name} is stored on the solver's grid: downsampling={method} has no meaning")
            raise unknown_name("downsampling", method, self.downsamplings)
        return method

    def choose_initial(self, initial: str | None) -> str:
        """The kind of initial state that is meant by ``initial``; an unknown one lists the choices."""
        if initial is None:
            return self.initial_kinds[0]
        if initial not in self.initial_kinds:
            raise unknown_name("initial state", initial, self.initial_kinds)
        return initial
