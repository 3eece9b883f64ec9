"""Small initial states and settings shared by the tests of the solvers."""

import math
import re
from functools import cache
from itertools import pairwise
from pathlib import Path

import torch

from factformer import catalog, simulate
from factformer.pdes import PDE, find_pde

PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "add-a-pde.md"
RESOLUTION = {
    "kolmogorov_flow": 32,
    "isotropic_turbulence": 12,
    "smoke_buoyancy": 10,
    "darcy_flow": 17,
    "cahn_hilliard": 160,
    "fisher_kpp": 48,
    "kuramoto_sivashinsky": 36,
    "swift_hohenberg": 66,
    "allen_cahn": 40,
}
"""Points that resolve the waves that grow, with parameters larger by a quarter, too; 16 for the others."""

SEMILINEAR = (
    "advection_diffusion",
    "burgers",
    "cahn_hilliard",
    "fisher_kpp",
    "gray_scott",
    "korteweg_de_vries",
    "kuramoto_sivashinsky",
    "swift_hohenberg",
)


def all_pdes() -> list[PDE]:
    return [find_pde(name) for name in catalog.names("pdes")]


@cache
def page_pde() -> PDE:
    """The equation of docs/how-to/add-a-pde.md, as it stands there."""
    found = re.search(r'^```python title="allen_cahn.py"\n(.*?)^```$', PAGE.read_text(encoding="utf-8"), re.M | re.S)
    assert found is not None
    names: dict[str, object] = {"__name__": "allen_cahn_of_the_page"}
    exec(compile(found[1], str(PAGE), "exec"), names)
    pde = names["pde"]
    assert isinstance(pde, PDE)
    return pde


def resolution(pde: PDE) -> int:
    return RESOLUTION.get(pde.name, 16)


def start(
    pde: PDE, count: int = 2, first: int = 0, size: int | None = None, dtype: torch.dtype = torch.float64
) -> torch.Tensor:
    """Random initial states from the seeds ``first, first + 1, …``."""
    grid = pde.problem(size or resolution(pde)).grid
    generators = [torch.Generator().manual_seed(first + i) for i in range(count)]
    return pde.sample_initial(grid, generators, dtype=dtype, device="cpu")


@cache
def given(pde: PDE, shape: tuple[int, ...]) -> dict[str, torch.Tensor]:
    """What an equation needs beside its start, the same for all trajectories."""
    generators = [torch.Generator().manual_seed(0)]
    grid = pde.problem(shape).grid
    known = pde.sample_known(grid, generators, 4, pde.task.frame_dt, dtype=torch.float64, device="cpu")
    return {name: getattr(known, name)[0] for name in pde.conditions}


def simulated(pde: PDE, initial: torch.Tensor, *arguments: object, **settings: object) -> torch.Tensor:
    """`simulate` with what the equation is `given`."""
    shape = tuple(initial.shape[1:-1])
    parts = given(pde, shape if len(shape) in pde.dimensions else pde.problem(resolution(pde)).grid.shape)
    return simulate(pde, initial, *arguments, **{**parts, **settings})


def num_frames(pde: PDE, count: int) -> int:
    """``count``, or the one frame of an equation without time."""
    return 1 if pde.steady else count


def started_channels(pde: PDE) -> slice:
    """What a simulation starts from: velocity for turbulence, density for smoke, otherwise the whole state."""
    problem = pde.problem(16)
    count = pde.initial_channels(problem.grid.num_axes)
    return problem.state_slices["velocity"] if pde.name == "isotropic_turbulence" else slice(0, count)


def solve(pde: PDE, frames: torch.Tensor, **parameters: object) -> torch.Tensor:
    """The solution from the first of these frames; for a steady problem, coefficient and solution side by side."""
    if pde.steady:
        coefficient = frames[:, 0, ..., :1]
        return torch.cat([coefficient[:, None], simulate(pde, coefficient, **parameters)], dim=-1)
    return simulated(pde, frames[:, 0, ..., started_channels(pde)], 4, **parameters)


def solution(pde: PDE, count: int = 2, **parameters: object) -> torch.Tensor:
    """Frames of a solution from random starts, as `solve` takes them."""
    initial = start(pde, count)
    padded = torch.zeros(*initial.shape[:-1], pde.problem(16).num_state_channels, dtype=initial.dtype)
    padded[..., started_channels(pde)] = initial
    return solve(pde, padded[:, None], **parameters)


def relative(value: torch.Tensor, reference: torch.Tensor) -> float:
    return float((value - reference).norm() / reference.norm())


def rates(errors: list[float]) -> list[float]:
    """Observed orders between successive halvings."""
    return [math.log2(a / b) for a, b in pairwise(errors)]
