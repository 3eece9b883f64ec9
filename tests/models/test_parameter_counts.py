"""Sizes of the models at the paper's settings (Tables 1 to 3); complex weights count twice."""

import math
from pathlib import Path

import pytest
import torch

from factformer import catalog, recipes
from factformer.grid import Grid
from factformer.nn.spectral_conv import SpectralConvolution
from factformer.problem import Field, Problem
from factformer.surrogate import build_surrogate
from factformer.training.parameters import count_parameters

VELOCITY = Field("velocity", 3)
KOLMOGOROV = Problem(
    "kolmogorov_flow",
    Grid((256, 256), 2 * math.pi, True),
    (Field("vorticity"),),
    num_context_frames=10,
    horizon=16,
)
TURBULENCE = Problem(
    "isotropic_turbulence",
    Grid((60,) * 3, 2 * math.pi, True),
    (Field("pressure"), VELOCITY),
    num_context_frames=10,
    horizon=10,
)
SMOKE = Problem(
    "smoke_buoyancy",
    Grid((64,) * 3, 8.0, False, "cells"),
    (Field("density"), VELOCITY),
    num_context_frames=4,
    horizon=16,
    boundary="zero",
)
STEPS = {"kolmogorov_flow": 4, "isotropic_turbulence": 2, "smoke_buoyancy": 4}


def count(model: str, problem: Problem, **options) -> int:
    with torch.device("meta"):
        return build_surrogate(problem, model, marching_steps=STEPS[problem.name], **options).num_parameters


@pytest.mark.parametrize(
    ("model", "problem", "millions"),
    [
        ("fno", KOLMOGOROV, 85.1),
        ("fno", TURBULENCE, 509.8),
        ("fno", SMOKE, 509.8),
        ("ffno", KOLMOGOROV, 3.7),
        ("ffno", TURBULENCE, 3.0),
        ("ffno", SMOKE, 3.0),
        ("dilated_resnet", KOLMOGOROV, 2.4),
        ("dilated_resnet", TURBULENCE, 6.9),
        ("dilated_resnet", SMOKE, 6.9),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_the_size_is_the_paper_s(model, problem, millions):
    assert count(model, problem) / 1e6 == pytest.approx(millions, rel=0.03)


@pytest.mark.parametrize(
    ("model", "options", "millions"),
    [
        ("unet", {}, 144),  # PDEArena's Unetmod-64
        ("convnext_unet", {}, 18.6),  # CNextU-Net of The Well
        ("transolver", {}, 2.8),  # the released settings for Darcy flow
        ("transolver", {"dim": 256, "head_dim": 32, "num_slices": 32}, 11.2),  # and for Navier-Stokes
        ("swin_transformer", {}, 20.8),  # Poseidon-T
    ],
)
def test_newer_models_have_the_sizes_of_their_papers(model, options, millions):
    with torch.device("meta"):
        backbone = build_surrogate(KOLMOGOROV, model, **options).backbone
    assert sum(weight.numel() for weight in backbone.parameters()) / 1e6 == pytest.approx(millions, rel=0.02)


def test_complex_weights_are_pairs_of_real_ones():
    with torch.device("meta"):
        surrogate = build_surrogate(KOLMOGOROV, "fno")
    weights = [m.weight.numel() for m in surrogate.modules() if isinstance(m, SpectralConvolution)]
    # Per layer: corners of the spectrum, modes, channels, real and imaginary part.
    assert weights == [2 * (24 * 24) * (96 * 96) * 2] * 4


@pytest.mark.parametrize("problem", [KOLMOGOROV, TURBULENCE, SMOKE], ids=lambda problem: problem.name)
def test_factformer_plus_is_at_most_half_larger(problem):
    sizes = {"heads": 6, "kernel_dim": 192} if problem.grid.num_axes == 3 else {}
    assert count("factformer_plus", problem, **sizes) <= 1.5 * count("factformer", problem, **sizes)


def test_the_documentation_states_the_sizes_that_the_code_has():
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    stated = {}
    for row in page.splitlines():
        if row.startswith("| `"):
            cells = [cell.strip() for cell in row.strip("|").split("|")]
            if len(cells) == 4:  # model, formula, cost, parameters
                stated[cells[0].split("`")[1]] = [float(number) for number in cells[3].split(",")]
    assert sorted(stated) == catalog.names("models")
    for model, sizes in stated.items():
        counted = [
            count_parameters(recipes.build(recipe, "paper", [f"model.name={model}"]))
            for recipe in ("kolmogorov", "turbulence")
        ]
        assert sizes == [round(number / 1e6, 2) for number in counted], model
