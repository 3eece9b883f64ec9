"""Augmented windows are solutions of the same equation, and depend on seed and update alone."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from small_waves import wave_data

import factformer
from factformer import catalog
from factformer.batch import Batch, Window
from factformer.data import convert, open_dataset
from factformer.data.dataset import ArrayDataset
from factformer.errors import UserError
from factformer.pdes import PDE, find_pde
from factformer.problem import Field
from factformer.training.feed.augmentation import Augmentation

# How to solve anew from the first frame of a window: the channels that make up the initial state.
CASES = {
    "kolmogorov_flow": (32, slice(None), {"forcing_wavenumber": 4}),
    "isotropic_turbulence": (12, slice(1, None), {}),
    "smoke_buoyancy": (8, slice(0, 1), {"velocity_points": "cells"}),
}
USUAL = {"forcing_wavenumber": 8, "velocity_points": "lower_faces"}


class Simulated(ArrayDataset):
    """Arrays that tell what they were made with."""

    def __init__(self, frames, problem, made_with=None):
        super().__init__(frames, problem)
        known = find_pde(problem.name).parameters.model_fields
        self.made_with = {key: value for key, value in USUAL.items() if key in known} | (made_with or {})

    @property
    def provenance(self):
        return {"parameters": self.made_with}


@pytest.mark.parametrize("name", CASES)
def test_solving_from_an_augmented_start_gives_the_augmented_solution(name):
    size, state, parameters = CASES[name]
    pde = find_pde(name)
    problem = pde.problem(size)
    generators = [torch.Generator().manual_seed(seed) for seed in range(6)]
    initial = pde.sample_initial(problem.grid, generators, dtype=torch.float64, device="cpu")
    solve = lambda start: factformer.simulate(name, start, 3, problem.frame_dt, **parameters)  # noqa: E731
    frames = solve(initial)
    augmentation = Augmentation(name, Simulated(frames, problem, parameters), seed=0)
    moved = augmentation(Window(frames), update=3, slots=range(6)).frames
    assert not torch.allclose(moved, frames)
    torch.testing.assert_close(solve(moved[:, 0, ..., state]), moved, rtol=1e-9, atol=1e-9)


def test_input_and_output_of_a_steady_problem_move_together():
    pde = find_pde("darcy_flow")
    problem = pde.problem(13)
    generators = [torch.Generator().manual_seed(seed) for seed in range(6)]
    coefficient = pde.sample_initial(problem.grid, generators, dtype=torch.float64, device="cpu")
    solution = factformer.simulate("darcy_flow", coefficient)
    dataset = ArrayDataset(solution, problem, static=coefficient)
    window = Augmentation("darcy_flow", dataset, 0)(Window(solution, Batch(static=coefficient)), 1, range(6))
    assert not torch.allclose(window.known.static, coefficient)
    torch.testing.assert_close(
        factformer.simulate("darcy_flow", window.known.static), window.frames, rtol=1e-6, atol=1e-9
    )


def test_bodies_move_with_the_flow_around_them():
    pde = find_pde("obstacle_flow")
    problem = pde.problem(pde.shape(12))
    generators = [torch.Generator().manual_seed(seed) for seed in range(6)]
    kinds = {"dtype": torch.float64, "device": "cpu"}
    mask = pde.sample_known(problem.grid, generators, 3, problem.frame_dt, **kinds).mask
    initial = pde.sample_initial(problem.grid, generators, **kinds)
    settings = {"viscosity": 0.02, "penalisation": 0.02}
    frames = factformer.simulate("obstacle_flow", initial, 3, mask=mask, **settings)
    dataset = ArrayDataset(frames, problem, mask=mask)
    window = Augmentation("obstacle_flow", dataset, 0)(Window(frames, Batch(mask=mask)), 1, range(6))
    assert not torch.equal(window.known.mask, mask)
    solved = factformer.simulate("obstacle_flow", window.frames[:, 0], 3, mask=window.known.mask, **settings)
    torch.testing.assert_close(solved, window.frames, rtol=1e-9, atol=1e-9)
    signs = {bool((window.frames[b, 0, ..., 1].sum() * frames[b, 0, ..., 1].sum()) < 0) for b in range(6)}
    assert signs == {True, False}  # some are reflected, some are not


def test_the_draw_is_a_function_of_seed_update_and_place():
    pde = find_pde("kolmogorov_flow")
    frames = torch.randn(4, 2, 16, 16, 1)
    dataset = Simulated(frames, pde.problem(16))

    def draw(seed, update, slots):
        window = Window(frames[slots.start % 4 :][: len(slots)])
        return Augmentation("kolmogorov_flow", dataset, seed)(window, update, slots).frames

    first = draw(0, 1, range(4))
    assert torch.equal(first, draw(0, 1, range(4)))
    for other in (draw(1, 1, range(4)), draw(0, 2, range(4)), draw(0, 1, range(4, 8))):
        assert not torch.equal(first, other)
    # two devices with half of the batch each
    assert torch.equal(first, torch.cat([draw(0, 1, range(2)), draw(0, 1, range(2, 4))]))


def test_data_without_a_known_pde_cannot_be_augmented():
    with pytest.raises(UserError, match=r"training\.augment=false"):
        Augmentation("waves", wave_data()[0], 0)


def test_a_pde_without_symmetries_cannot_be_augmented():
    """A user's equation may say nothing of what carries its solutions to solutions."""
    known = find_pde("burgers")

    class Silent(type(known)):
        name = "silent"
        augment = PDE.augment

    dataset = ArrayDataset(torch.randn(2, 3, 16, 1), known.problem(16))
    said = r"silent defines none; set training\.augment=false, or write `augment` of Silent"
    with catalog.using(pdes=[Silent()]), pytest.raises(UserError, match=said):
        Augmentation("silent", dataset, 0)


def test_data_of_unknown_parameters_cannot_be_augmented_where_these_decide(tmp_path):
    """Arrays of somebody else: the force may have any wavenumber."""
    frames = np.random.default_rng(0).normal(size=(2, 3, 16, 16, 1)).astype("f4")
    np.save(tmp_path / "flow.npy", frames)
    convert(tmp_path / "flow.npy", tmp_path / "unknown", "kolmogorov_flow")
    with pytest.raises(UserError, match=r"depends on forcing_wavenumber .* --set parameters\.forcing_wavenumber=VALUE"):
        Augmentation("kolmogorov_flow", open_dataset(tmp_path / "unknown"), 0)
    settings = ["parameters.forcing_wavenumber=4"]
    convert(tmp_path / "flow.npy", tmp_path / "known", "kolmogorov_flow", settings=settings)
    augmentation = Augmentation("kolmogorov_flow", open_dataset(tmp_path / "known"), 0)
    assert augmentation.settings.shared.forcing_wavenumber == 4


@pytest.mark.parametrize("name", ["isotropic_turbulence", "smoke_buoyancy"])
def test_fields_move_as_themselves_in_any_order_and_choice(name):
    pde = find_pde(name)
    problem = pde.problem(6)
    frames = torch.randn(4, 2, 6, 6, 6, 4, generator=torch.Generator().manual_seed(0))

    def moved(order):
        outputs = tuple(problem.state[index] for index in order)
        places = [place for field in outputs for place in range(4)[problem.state_slices[field.name]]]
        chosen = replace(problem, state=outputs)
        dataset = Simulated(frames[..., places], chosen)
        return places, Augmentation(name, dataset, seed=0)(Window(frames[..., places]), 3, range(4)).frames

    _, whole = moved((0, 1))
    for order in ((1, 0), (1,), (0,)):
        places, part = moved(order)
        assert torch.equal(part, whole[..., places])
    stranger = replace(problem, state=(Field("heat"),))
    with pytest.raises(UserError, match="'heat' with 1 channels is no field of"):
        Augmentation(name, ArrayDataset(frames[..., :1], stranger), seed=0)
