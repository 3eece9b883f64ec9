"""The paper's tables on its grids, with its number of trajectories; heads and kernel dimensions; long runs."""

from __future__ import annotations

from dataclasses import replace

from factformer.studies.cells import Training
from factformer.studies.targets.kolmogorov import HEADS, KERNEL_DIMS, SEEDS
from lab.campaign.entries import (
    AUTOREGRESSIVE,
    BFLOAT,
    BOX_STORAGE,
    LATENT,
    PLUS,
    STEADY,
    Entry,
    again,
    equal_cost,
)

MODELS = ("fno", "ffno", "dilated_resnet", "factformer")
PAIRS = [*((model, protocol) for protocol in (LATENT, AUTOREGRESSIVE) for model in MODELS), (PLUS, LATENT)]
"""Every model of the paper with both protocols, and ours."""
DARCY_MODELS = ("factformer", "ffno", "galerkin_transformer")
LARGE = {"turbulence": (60, "turbulence-1000"), "smoke": (64, "smoke-2000")}
WHOLE_LENGTH = ("training.updates=100000", "training.budget_minutes=null")
"""What the paper trains; the minutes of a long run are what they are expected to take."""


def table1() -> list[Entry]:
    """Table 1 at 256²: every model with both protocols, and ours, four minutes each."""
    return equal_cost("table1", "kolmogorov", 256, 4.0, PAIRS, in_zoo=True)


def large_boxes(recipe: str) -> list[Entry]:
    """Tables 2 and 3 on the paper's number of trajectories, three minutes each."""
    size, data = LARGE[recipe]
    folder = f"{recipe}-{size}-large"
    return equal_cost(f"{recipe}-large", recipe, size, 3.0, PAIRS, (*BFLOAT, BOX_STORAGE), folder=folder, data=data)


def darcy_more() -> list[Entry]:
    """Darcy flow by training resolution for the models that the first runs left out."""
    pairs = [(model, STEADY) for model in DARCY_MODELS]
    return [entry for size in (61, 141, 211) for entry in equal_cost("darcy-more", "darcy", size, 2.0, pairs)]


def sizes() -> list[Entry]:
    """Heads and kernel dimensions of the paper at 128², a minute each with every seed."""
    values = [("heads", number) for number in HEADS["paper"]] + [("kernel_dim", n) for n in KERNEL_DIMS["paper"]]
    found = []
    for key, value in values:
        settings = (*BFLOAT, f"model.{key}={value}")
        run = Training("kolmogorov", "factformer", LATENT, 128, settings)
        words = f"{key.replace('_', '-')}-{value}"
        first = Entry("sizes", "sizes-128", words, run, 1.0, words.replace("-", " "))
        found += [first if seed == 0 else again(first, seed) for seed in SEEDS]
    return found


def whole_length() -> list[Entry]:
    """FactFormer for as many updates as in the paper, in segments; Kolmogorov flow with averaged and sampled points."""
    boxes = [
        Entry(
            "whole-length",
            f"{recipe}-{size}-large",
            "factformer-100k",
            Training(recipe, "factformer", LATENT, size, (*BFLOAT, BOX_STORAGE, *WHOLE_LENGTH)),
            minutes,
            "100,000 updates",
            data=data,
            in_segments=True,
        )
        for (recipe, (size, data)), minutes in zip(LARGE.items(), (44, 51), strict=True)
    ]
    run = Training("kolmogorov", "factformer", LATENT, 128, (*BFLOAT, *WHOLE_LENGTH))
    plane = Entry("whole-length", "kolmogorov-128", "factformer-100k", run, 15, "100,000 updates", in_segments=True)
    points = replace(plane, folder="kolmogorov-points-128", data="kolmogorov-points", title="100,000 updates, points")
    return [plane, points, *boxes[::-1]]
