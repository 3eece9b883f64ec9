"""An equation in any number of dimensions, and one in a box that is longer than high."""

import math

import pytest
import torch

from factformer import Field, Grid, build_surrogate, catalog, simulate
from factformer.config import Config
from factformer.data import generate, open_dataset
from factformer.data.generate.simulated import simulate_splits
from factformer.errors import UserError
from factformer.evaluation.solver import benchmark_solver
from factformer.pdes import PDE, Preset, Task


class Parameters(Config):
    diffusivity: float = 0.1


class Heat(PDE):
    """∂u/∂t = a ∇²u on a periodic box, and its gradient beside it."""

    name = "heat"
    dimensions = (2, 1, 3, 4)
    num_initial_channels = 1
    parameters = Parameters
    varying = ("diffusivity",)
    task = Task(0.5, num_context_frames=1, horizon=2)
    presets = {"tiny": Preset(4, 4, 3, 0.5, {"train": 2}, batch_size=2)}  # noqa: RUF012

    def fields(self, num_axes):
        return (Field("temperature"), Field("gradient", num_axes))

    def grid(self, shape):
        return Grid(shape, [2 * math.pi * (2 if m == 0 else 1) for m in range(len(shape))], periodic=True)

    def shape(self, resolution):
        return (2 * resolution, resolution)

    def sample_initial(self, grid, generators, *, dtype, device, initial=None):
        self.choose_initial(initial)
        return torch.stack([torch.randn(*grid.shape, 1, generator=item) for item in generators]).to(device, dtype)

    def frames(self, initial, num_frames, frame_dt, parameters):
        grid = self.grid(initial.shape[1:-1])
        axes = range(1, grid.num_axes + 1)
        waves = [
            grid.wavenumbers(m).reshape([-1 if n == m else 1 for n in range(grid.num_axes)])
            for m in range(grid.num_axes)
        ]
        rate = parameters.diffusivity * sum(wave.square() for wave in waves)
        spectrum = torch.fft.fftn(initial[..., 0], dim=tuple(axes))
        for number in range(num_frames):
            now = spectrum * torch.exp(-rate * number * frame_dt)
            parts = [now, *(1j * wave * now for wave in waves)]
            yield torch.stack([torch.fft.ifftn(part, dim=tuple(axes)).real for part in parts], -1).to(initial.dtype)


@pytest.mark.parametrize("shape", [(7,), (6, 5), (4, 3, 5), (3, 4, 2, 3)])
def test_an_equation_may_have_one_to_four_axes(shape) -> None:
    pde = Heat()
    problem = pde.problem(shape)
    assert problem.grid.shape == shape and problem.num_state_channels == 1 + len(shape)
    frames = simulate(pde, torch.randn(2, *shape, 1, dtype=torch.float64), 3)
    assert frames.shape == (2, 3, *shape, 1 + len(shape))
    mean = frames[..., 0].flatten(2).mean(-1)
    torch.testing.assert_close(mean, mean[:, :1].expand_as(mean))


def test_a_resolution_may_stand_for_other_sizes_along_the_axes(tmp_path) -> None:
    pde = Heat()
    assert pde.problem(4).grid.shape == (8, 4)
    generate(pde, tmp_path, preset="tiny")
    data = open_dataset(tmp_path, "train")
    assert data.problem == pde.problem((8, 4))
    in_memory = simulate_splits(pde, pde.presets["tiny"], {"train": 2})[4]["train"]
    assert torch.equal(in_memory.read([0, 1]), data.read([0, 1]))


def test_sizes_that_do_not_fit_are_named() -> None:
    with pytest.raises(UserError, match=r"heat has 2 or 1 or 3 or 4 axes, got the shape \(2, 2, 2, 2, 2\)"):
        Heat().problem((2,) * 5)
    with pytest.raises(UserError, match=r"an object of a subclass of PDE, got <class .*; make one with"):
        simulate(Heat, torch.zeros(1, 4, 4, 1))


def test_a_class_without_random_starts_is_refused_before_anything_is_made() -> None:
    class Silent(PDE):
        name = "silent"
        parameters = Parameters

        def grid(self, shape):
            return Grid(shape, 1.0, periodic=True)

        def frames(self, initial, num_frames, frame_dt, parameters):
            yield initial

    with pytest.raises(UserError, match="class Silent defines neither `starts` nor `sample_initial`"):
        Silent()


def test_starts_are_one_method_without_number_formats() -> None:
    class Short(Heat):
        sample_initial = PDE.sample_initial

        def starts(self, grid, generators, kind, like):
            return torch.stack([torch.rand(*grid.shape, 1, generator=item) for item in generators]).to(like)

    pde, generators = Short(), [torch.Generator().manual_seed(seed) for seed in range(2)]
    found = pde.sample_initial(pde.grid((4, 3)), generators, dtype=torch.float64, device="cpu")
    assert found.shape == (2, 4, 3, 1) and found.dtype == torch.float64
    with pytest.raises(UserError, match="unknown initial"):
        pde.sample_initial(pde.grid((4, 3)), generators, dtype=torch.float64, device="cpu", initial="waves")


def test_an_equation_without_presets_says_so(tmp_path) -> None:
    class Bare(Heat):
        presets = {}  # noqa: RUF012

    with pytest.raises(UserError, match="heat has no presets: give a Preset"):
        generate(Bare(), tmp_path)


def test_the_solver_benchmark_solves_on_the_stored_grid_of_a_longer_box(tmp_path) -> None:
    """It took the size of the first axis for the resolution."""
    pde = Heat()
    generate(pde, tmp_path, preset="tiny", splits=["test"], trajectories=1)
    surrogate = build_surrogate(pde.problem(4), "fno", dim=8, depth=1)
    with catalog.using(pdes=[pde]):
        result = benchmark_solver(surrogate, open_dataset(tmp_path, "test"), device="cpu")
    assert [row["resolution"] for row in result["rows"][:2]] == [4, 4]
