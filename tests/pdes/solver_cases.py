"""Small initial states and settings shared by the tests of the solvers."""

import math
from itertools import pairwise

import torch

from factformer import catalog
from factformer.pdes import PDE, find_pde

RESOLUTION = {"kolmogorov_flow": 32, "isotropic_turbulence": 12, "smoke_buoyancy": 10, "darcy_flow": 17}


def all_pdes() -> list[PDE]:
    return [find_pde(name) for name in catalog.names("pdes")]


def resolution(pde: PDE) -> int:
    return RESOLUTION.get(pde.name, 16)


def start(
    pde: PDE, count: int = 2, first: int = 0, size: int | None = None, dtype: torch.dtype = torch.float64
) -> torch.Tensor:
    """Random initial states from the seeds ``first, first + 1, …``."""
    grid = pde.problem(size or resolution(pde)).grid
    generators = [torch.Generator().manual_seed(first + i) for i in range(count)]
    return pde.sample_initial(grid, generators, dtype=dtype, device="cpu")


def relative(value: torch.Tensor, reference: torch.Tensor) -> float:
    return float((value - reference).norm() / reference.norm())


def rates(errors: list[float]) -> list[float]:
    """Observed orders between successive halvings."""
    return [math.log2(a / b) for a, b in pairwise(errors)]
