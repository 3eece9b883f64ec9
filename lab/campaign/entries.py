"""The runs of the equal-cost tables: which model on which data for how many minutes, and where its result goes.

Every entry fills one file ``results/<folder>/<name>.json``. Sizes, batch, learning rate and protocol are the recipe's
at the paper's scale: the paper's for its models, our own for ``factformer_plus``. The clock is the same for all.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from factformer import recipes
from factformer.studies.cells import Training

PLUS = "factformer_plus"
LATENT, AUTOREGRESSIVE, STEADY = "latent_marching", "autoregressive", "steady"
BFLOAT = ("training.precision=bf16-mixed",)
COARSE_FIRST = ("model.local_dilations=[2]", "protocol.coarse=2")
"""The first 70 % of training see every second point of a fine grid: more updates in the same time."""
BOX_STORAGE = "data.storage=bfloat16"
KOLMOGOROV_MODELS = (
    "factformer",
    PLUS,
    "fno",
    "ffno",
    "dilated_resnet",
    "linear_attention",
    "axial_transformer",
)
DARCY_MODELS = ("factformer", PLUS, "fno", "ffno", "dilated_resnet", "galerkin_transformer", "linear_attention")
DARCY_RESOLUTIONS = (61, 85, 141, 211)
RESOLUTION_MODELS = (PLUS, "fno", "dilated_resnet")
BOX_MODELS = (PLUS, "factformer", "dilated_resnet", "ffno")


CHOOSING = ("research", "search", "spacing")
"""Groups whose runs decide what a recipe is."""


@dataclass(frozen=True)
class Entry:
    """One run and the file that it fills."""

    group: str
    folder: str
    name: str
    run: Training
    minutes: float
    title: str = ""
    """What sets the run apart, in the words of a table."""
    also: tuple[int, ...] = ()
    """Other resolutions on which the trained model is evaluated, without training there."""
    bundle: str = ""
    """Name in the zoo, where the trained model is kept."""
    in_segments: bool = False
    """Trained in several segments, each in a process and perhaps on a machine of its own."""
    data: str = ""
    """Which dataset, if not the usual one of the recipe (`lab.campaign.datasets`)."""
    judged_on: tuple[str, ...] = ()
    """Other datasets on whose test flows the trained model is evaluated."""

    @property
    def data_name(self) -> str:
        return self.data or self.run.recipe

    @property
    def longest_stride(self) -> int:
        """Intervals of the data that one frame of the surrogate is, at most."""
        given = [text.partition("=")[2] for text in self.run.settings if text.startswith("protocol.stride=")]
        values = json.loads(given[-1]) if given else 1
        return max(values) if isinstance(values, list) else int(values)

    @property
    def path(self) -> str:
        """Below the folder of results."""
        return f"{self.folder}/{self.name}.json"

    @property
    def split(self) -> str:
        """What the run is judged by: whatever is chosen must not be chosen on the test set."""
        return "valid" if self.group in CHOOSING else "test"


def entry_name(model: str, protocol: str, minutes: float) -> str:
    return f"{model}{'-ar' if protocol == AUTOREGRESSIVE else ''}-{minutes:g}min"


def equal_cost(
    group: str,
    recipe: str,
    resolution: int,
    minutes: float,
    pairs: Iterable[tuple[str, str]],
    settings: tuple[str, ...] = BFLOAT,
    *,
    folder: str = "",
    in_zoo: bool = False,
    **more: Any,
) -> list[Entry]:
    """Pairs of model and protocol, for the same minutes on the same data; ``in_zoo`` keeps our model."""
    folder = folder or f"{recipe}-{resolution}"
    return [
        Entry(
            group,
            folder,
            entry_name(model, protocol, minutes),
            Training(recipe, model, protocol, resolution, settings),
            minutes,
            bundle=folder if in_zoo and model == PLUS else "",
            **more,
        )
        for model, protocol in pairs
    ]


def kolmogorov() -> list[Entry]:
    """Kolmogorov flow at 128²: every model with latent marching, two with autoregression too."""
    pairs = [(model, LATENT) for model in KOLMOGOROV_MODELS]
    pairs += [("ffno", AUTOREGRESSIVE), ("factformer", AUTOREGRESSIVE)]
    return equal_cost("kolmogorov", "kolmogorov", 128, 3.0, pairs, in_zoo=True)


def recipe(problem: str, size: int, *needed: str) -> list[Entry]:
    """What our recipe does for models of the paper, so that it is not mistaken for what our network does."""
    plus = recipes.build(problem, "paper", [f"model.name={PLUS}"])
    keys = (
        "optimizer",
        "learning_rate",
        "weight_decay",
        "schedule",
        "warmup",
        "initial_fraction",
        "final_fraction",
        "ema_decay",
        "augment",
        "batch_size",
        "noise",
    )
    settings = tuple(f"training.{key}={json.dumps(getattr(plus.training, key))}" for key in keys)
    settings += (f"protocol.marching_steps={plus.protocol.model_dump()['marching_steps']}",)
    return [
        Entry(
            f"{problem}-recipe",
            f"{problem}-{size}",
            f"{model}-our-recipe-3min",
            Training(problem, model, LATENT, size, (*BFLOAT, *needed, *settings)),
            3.0,
        )
        for model in ("factformer", "dilated_resnet")
    ]


def darcy() -> list[Entry]:
    """Darcy flow at 85²; each model is then applied to the other resolutions, without training there."""
    others = tuple(size for size in DARCY_RESOLUTIONS if size != 85)
    return equal_cost("darcy", "darcy", 85, 2.0, [(model, STEADY) for model in DARCY_MODELS], in_zoo=True, also=others)


def darcy_resolutions() -> list[Entry]:
    """The paper's figure: error against training resolution (the runs at 85² are those of `darcy`)."""
    settings = {(PLUS, 211): (*BFLOAT, *COARSE_FIRST)}
    found = []
    for model, size in product(RESOLUTION_MODELS, DARCY_RESOLUTIONS):
        if size != 85:
            given = settings.get((model, size), BFLOAT)
            found += equal_cost("darcy-resolutions", "darcy", size, 2.0, [(model, STEADY)], given)
    return found


def boxes(recipe: str, size: int) -> list[Entry]:
    """The three-dimensional problems with latent marching."""
    pairs = [(model, LATENT) for model in BOX_MODELS]
    return equal_cost(recipe, recipe, size, 3.0, pairs, (*BFLOAT, BOX_STORAGE), in_zoo=True)


def long() -> list[Entry]:
    """Kolmogorov flow at 128² for a quarter of an hour, in segments."""
    pairs = [(PLUS, LATENT), ("factformer", LATENT)]
    return equal_cost("long", "kolmogorov", 128, 15.0, pairs, in_zoo=True, in_segments=True)


def variants(
    group: str,
    folder: str,
    model: str,
    changes: Mapping[str, tuple[str, ...]],
    *,
    recipe: str = "kolmogorov",
    resolution: int = 64,
) -> list[Entry]:
    """A minute each, one change at a time; the change is the title."""
    protocol = STEADY if recipe == "darcy" else LATENT
    return [
        Entry(
            group, folder, _slug(title), Training(recipe, model, protocol, resolution, (*BFLOAT, *settings)), 1.0, title
        )
        for title, settings in changes.items()
    ]


def ablations() -> list[Entry]:
    """One minute at 64²: the choices of factformer, the additions of factformer_plus, and the spread over seeds."""
    ours = {
        "factformer_plus": (),
        "factformer_plus, seed 1": ("training.seed=1",),
        "factformer_plus, seed 2": ("training.seed=2",),
        "no local branch": ("model.local_branch=false",),
        "no local branch, four frames per call": ("model.local_branch=false", "protocol.marching_steps=4"),
        "frames, not increments": ("model.residual=false",),
        "four frames per call": ("protocol.marching_steps=4",),
        "local kernel 5": ("model.local_kernel=5",),
        "paper's rotary frequencies": ("model.rotary=paper",),
        "paper's Fourier features": ("model.fourier=paper",),
        "no augmentation": ("training.augment=false",),
        "no weight average": ("training.ema_decay=null",),
        "no noise": ("training.noise=0",),
        "AdamW, learning rate 1e-3": ("training.optimizer=adamw", "training.learning_rate=1e-3"),
        "AdamW, learning rate 3e-3": ("training.optimizer=adamw", "training.learning_rate=3e-3"),
    }
    papers = {
        "factformer": (),
        "factformer, seed 1": ("training.seed=1",),
        "factformer, seed 2": ("training.seed=2",),
        "factformer, 1 head": ("model.heads=1",),
        "factformer, 4 heads": ("model.heads=4",),
        "factformer, kernel dimension 32": ("model.kernel_dim=32",),
        "factformer, pushforward 0": ("protocol.pushforward=0",),
        "factformer, pushforward 1": ("protocol.pushforward=1",),
        "factformer, no rotary encoding": ("model.rotary=off",),
        "factformer, noise 1 %": ("training.noise=0.01",),
    }
    return [
        *variants("ablations", "ablations-64", PLUS, ours),
        *variants("ablations", "ablations-64", "factformer", papers),
    ]


def again(entry: Entry, seed: int) -> Entry:
    """The same run with another seed, in a file of its own."""
    run = replace(entry.run, settings=(*entry.run.settings, f"training.seed={seed}"))
    return replace(entry, name=f"{entry.name}-seed{seed}", run=run, bundle="")


def _slug(title: str) -> str:
    kept = "".join(letter if letter.isalnum() or letter in ".-" else " " for letter in title.lower())
    return "-".join(kept.split())
