"""The runs of the equal-cost tables: which model on which data for how many minutes, and where its result goes.

Every entry fills one file ``results/<folder>/<name>.json``. Sizes, batch, learning rate and protocol are the recipe's
at the paper's scale: the paper's for its models, our own for ``factformer_plus``. The clock is the same for all.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from factformer import recipes
from factformer.config import unknown_name
from factformer.reproduce.plan import Training

PLUS = "factformer_plus"
LATENT, AUTOREGRESSIVE, STEADY = "latent_marching", "autoregressive", "steady"
BFLOAT = ("training.precision=bf16-mixed",)
BOX_STORAGE = "data.storage=bfloat16"
KOLMOGOROV_MODELS = (
    "factformer", PLUS, "fno", "ffno", "dilated_resnet", "linear_attention", "axial_transformer",
)  # fmt: skip
DARCY_MODELS = ("factformer", PLUS, "fno", "ffno", "dilated_resnet", "galerkin_transformer", "linear_attention")
DARCY_RESOLUTIONS = (61, 85, 141, 211)
RESOLUTION_MODELS = (PLUS, "fno", "dilated_resnet")
BOX_MODELS = (PLUS, "factformer", "dilated_resnet", "ffno")


@dataclass(frozen=True)
class Data:
    """The dataset that all entries of a recipe share."""

    train: int
    test: int
    storage: str = "float32"
    """Number format of the training frames in memory; test frames are always float32."""
    batch_size: int | None = None
    """Trajectories solved at once, if not as the preset says."""


DATA = {
    "kolmogorov": Data(100, 20),
    "darcy": Data(1000, 100, batch_size=100),
    "turbulence": Data(250, 40, "bfloat16", 50),
    "smoke": Data(250, 40, "bfloat16", 50),
}
"""A GPU of 139 GiB holds a thousand of the boxes; as many are solved as leave most of ten minutes for training."""


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
    """Other resolutions on which the trained model is evaluated as it is."""
    bundle: str = ""
    """Name in the zoo, where the trained model is kept."""
    in_legs: bool = False
    """Trained in several legs, each in a process and perhaps on a machine of its own."""

    @property
    def path(self) -> str:
        """Below the folder of results."""
        return f"{self.folder}/{self.name}.json"

    @property
    def split(self) -> str:
        """What the run is judged by: whatever is chosen must not be chosen on the test set."""
        return "valid" if self.group == "research" else "test"


def entry_name(model: str, protocol: str, minutes: float) -> str:
    return f"{model}{'-ar' if protocol == AUTOREGRESSIVE else ''}-{minutes:g}min"


def kolmogorov() -> list[Entry]:
    """Kolmogorov flow at 128²: every model with latent marching, two with autoregression too."""
    pairs = [(model, LATENT) for model in KOLMOGOROV_MODELS]
    pairs += [("ffno", AUTOREGRESSIVE), ("factformer", AUTOREGRESSIVE)]
    return [
        Entry("kolmogorov", "kolmogorov-128", entry_name(model, protocol, 3),
              Training("kolmogorov", model, protocol, 128, BFLOAT), 3.0,
              bundle="kolmogorov-128" if model == PLUS else "")
        for model, protocol in pairs
    ]  # fmt: skip


def recipe(problem: str, size: int, *needed: str) -> list[Entry]:
    """What our recipe does for models of the paper, so that it is not mistaken for what our network does."""
    plus = recipes.build(problem, "paper", [f"model.name={PLUS}"])
    keys = ("optimizer", "learning_rate", "weight_decay", "schedule", "warmup", "initial_fraction", "final_fraction",
            "ema_decay", "augment", "batch_size")  # fmt: skip
    settings = tuple(f"training.{key}={json.dumps(getattr(plus.training, key))}" for key in keys)
    settings += (f"protocol.marching_steps={plus.protocol.marching_steps}",)
    return [
        Entry(f"{problem}-recipe", f"{problem}-{size}", f"{model}-our-recipe-3min",
              Training(problem, model, LATENT, size, (*BFLOAT, *needed, *settings)), 3.0)
        for model in ("factformer", "dilated_resnet")
    ]  # fmt: skip


def darcy() -> list[Entry]:
    """Darcy flow at 85²; each model is then applied to the other resolutions as it is."""
    others = tuple(size for size in DARCY_RESOLUTIONS if size != 85)
    return [
        Entry("darcy", "darcy-85", entry_name(model, STEADY, 2), Training("darcy", model, STEADY, 85, BFLOAT), 2.0,
              also=others, bundle="darcy-85" if model == PLUS else "")
        for model in DARCY_MODELS
    ]  # fmt: skip


def darcy_resolutions() -> list[Entry]:
    """The paper's figure: error against training resolution (the runs at 85² are those of `darcy`)."""
    return [
        Entry("darcy-resolutions", f"darcy-{size}", entry_name(model, STEADY, 2),
              Training("darcy", model, STEADY, size, BFLOAT), 2.0)
        for model in RESOLUTION_MODELS
        for size in DARCY_RESOLUTIONS
        if size != 85
    ]  # fmt: skip


def boxes(recipe: str, size: int) -> list[Entry]:
    """The three-dimensional problems with latent marching."""
    settings = (*BFLOAT, BOX_STORAGE)
    return [
        Entry(recipe, f"{recipe}-{size}", entry_name(model, LATENT, 3),
              Training(recipe, model, LATENT, size, settings), 3.0,
              bundle=f"{recipe}-{size}" if model == PLUS else "")
        for model in BOX_MODELS
    ]  # fmt: skip


def long() -> list[Entry]:
    """Kolmogorov flow at 128² for a quarter of an hour, in legs."""
    return [
        Entry("long", "kolmogorov-128", entry_name(model, LATENT, 15),
              Training("kolmogorov", model, LATENT, 128, BFLOAT), 15.0,
              bundle="kolmogorov-128" if model == PLUS else "", in_legs=True)
        for model in (PLUS, "factformer")
    ]  # fmt: skip


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
        Entry(group, folder, _slug(title), Training(recipe, model, protocol, resolution, (*BFLOAT, *settings)), 1.0,
              title)
        for title, settings in changes.items()
    ]  # fmt: skip


def ablations() -> list[Entry]:
    """One minute at 64²: the choices of factformer, the additions of factformer_plus, and the spread over seeds."""
    ours = {
        "factformer_plus": (),
        "factformer_plus, seed 1": ("training.seed=1",),
        "factformer_plus, seed 2": ("training.seed=2",),
        "no local branch": ("model.local_branch=false",),
        "frames, not increments": ("model.residual=false",),
        "four frames per call": ("protocol.marching_steps=4",),
        "local kernel 5": ("model.local_kernel=5",),
        "paper's rotary frequencies": ("model.rotary=paper",),
        "paper's Fourier features": ("model.fourier=paper",),
        "no augmentation": ("training.augment=false",),
        "no weight average": ("training.ema_decay=null",),
        "AdamW, learning rate 1e-3": ("training.optimizer=adamw", "training.learning_rate=1e-3"),
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
    }
    return [
        *variants("ablations", "ablations-64", PLUS, ours),
        *variants("ablations", "ablations-64", "factformer", papers),
    ]


AT_FIRST = ("protocol.marching_steps=4", "model.local_kernel=5")
MUON = ("training.optimizer=muon", "training.learning_rate=3e-3")
FIRST_RECIPE = (*AT_FIRST, "training.optimizer=adamw", "training.learning_rate=1e-3", "training.batch_size=16")
SECOND_RECIPE = (*AT_FIRST, *MUON, "training.batch_size=16")
THIRD_RECIPE = (*AT_FIRST, *MUON, "training.batch_size=4")
FOURTH_RECIPE = ("protocol.marching_steps=2", "model.local_kernel=7", *MUON, "training.batch_size=4")
FIFTH_RECIPE = ("protocol.marching_steps=1", "model.local_kernel=7", *MUON, "training.batch_size=4")
DARCY_RECIPE = (*MUON, "training.batch_size=8")
BOX_RECIPE = (*MUON, "training.batch_size=1", BOX_STORAGE)
WIDE = ("model.local_dilations=[1,2,4,8]",)


@dataclass(frozen=True)
class Round:
    """Ideas that were tried on top of the same recipe; one without settings of its own is that recipe."""

    title: str
    resolution: int
    recipe: tuple[str, ...]
    ideas: Mapping[str, tuple[str, ...]]
    problem: str = "kolmogorov"
    noise: float = 0.02
    """Differences below this want a second run: the same configuration again may move by as much."""

    def entries(self) -> list[Entry]:
        changes = {title: (*self.recipe, *settings) for title, settings in self.ideas.items()}
        return variants("research", "research", PLUS, changes, recipe=self.problem, resolution=self.resolution)

    def bases(self) -> list[str]:
        """Titles of the recipe's own runs, with whatever seed."""
        return [
            title for title, settings in self.ideas.items()
            if all(setting.startswith("training.seed=") for setting in settings)
        ]  # fmt: skip


ROUNDS = (
    Round("The optimiser", 64, FIRST_RECIPE, {
        "base recipe": (),
        "Muon, learning rate 3e-3": ("training.optimizer=muon", "training.learning_rate=3e-3"),
        "Muon, learning rate 6e-3": ("training.optimizer=muon", "training.learning_rate=6e-3"),
        "learning rate 3e-3": ("training.learning_rate=3e-3",),
    }),
    Round("On top of Muon", 64, SECOND_RECIPE, {
        "Muon, learning rate 3e-3": (),
        "Muon, 3e-3, local branch dilated 1, 2, 4, 8": WIDE,
    }),
    Round("On top of Muon, where the tables are made", 128, SECOND_RECIPE, {
        "Muon, 3e-3, 128 points": (),
        "Muon, 3e-3, local branch dilated 1, 2, 4, 8, 128 points": WIDE,
        "Muon, 3e-3, batch 8, 128 points": ("training.batch_size=8",),
        "Muon, 3e-3, batch 4, 128 points": ("training.batch_size=4",),
    }),
    Round("On top of batches of four", 128, THIRD_RECIPE, {
        "Muon, 3e-3, batch 4, 128 points": (),
        "two frames per call": ("protocol.marching_steps=2",),
        "two frames per call, local kernel 7": ("protocol.marching_steps=2", "model.local_kernel=7"),
    }),
    Round("On top of two frames per call and a local kernel of 7", 128, FOURTH_RECIPE, {
        "two frames per call, local kernel 7": (),
        "one frame per call, local kernel 7": ("protocol.marching_steps=1",),
    }),
    Round("On top of one frame per call", 128, FIFTH_RECIPE, {
        "one frame per call, local kernel 7": (),
        "one frame, again": ("training.seed=1",),
        "one frame, learning rate 6e-3": ("training.learning_rate=6e-3",),
        "one frame, batch 2": ("training.batch_size=2",),
        "one frame, local kernel 9": ("model.local_kernel=9",),
        "one frame, pushforward at every update": ("protocol.pushforward_every=1",),
        "one frame, no pushforward": ("protocol.pushforward=0",),
        "one frame, pushforward 4": ("protocol.pushforward=4",),
        "one frame, gradients through two calls in the last third": ("protocol.calls=2", "protocol.calls_from=0.67"),
        "one frame, noise on the context, 1 %": ("training.noise=0.01",),
        "one frame, H1 term, weight 0.1": ("training.gradient_loss=0.1",),
        "one frame, deeper: 6 layers": ("model.depth=6",),
        "one frame, narrower: 96 channels": ("model.dim=96",),
        "one frame, axes contracted in parallel": ("model.contraction=parallel",),
    }),
    Round("Darcy flow", 85, DARCY_RECIPE, {
        "Darcy flow, bfloat16": (),
        "Darcy flow, float32": ("training.precision=32-true",),
        "Darcy flow, batch 4": ("training.batch_size=4",),
        "Darcy flow, local kernel 7": ("model.local_kernel=7",),
    }, "darcy", noise=0.001),
    Round("Smoke", 64, ("protocol.marching_steps=4", *BOX_RECIPE), {
        "smoke": (),
        "smoke, learning rate 6e-3": ("training.learning_rate=6e-3",),
        "smoke, two frames per call": ("protocol.marching_steps=2",),
        "smoke, one frame per call": ("protocol.marching_steps=1",),
    }, "smoke"),
    Round("Smoke, one frame per call", 64, ("protocol.marching_steps=1", *BOX_RECIPE), {
        "smoke, one frame per call": (),
        "smoke, one frame, local branch dilated 2, 4, 8": ("model.local_dilations=[2,4,8]",),
        "smoke, one frame, local kernel 5": ("model.local_kernel=5",),
    }, "smoke"),
    Round("Turbulence", 60, ("protocol.marching_steps=2", *BOX_RECIPE), {
        "turbulence": (),
        "turbulence, one frame per call": ("protocol.marching_steps=1",),
        "turbulence, one frame per call, local kernel 5": ("protocol.marching_steps=1", "model.local_kernel=5"),
    }, "turbulence"),
)  # fmt: skip
"""What might lower the error per second of training of factformer_plus, in the order in which it is tried."""


def research() -> list[Entry]:
    """The ideas of the research log, each once."""
    known: dict[str, Entry] = {}
    for part in ROUNDS:
        for entry in part.entries():
            known.setdefault(entry.path, entry)
    return list(known.values())


GROUPS = {
    "kolmogorov": kolmogorov,
    "kolmogorov-recipe": lambda: recipe("kolmogorov", 128),
    "darcy": darcy,
    "darcy-resolutions": darcy_resolutions,
    "turbulence": lambda: boxes("turbulence", 60),
    "smoke": lambda: boxes("smoke", 64),
    "smoke-recipe": lambda: recipe("smoke", 64, BOX_STORAGE),
    "ablations": ablations,
    "research": research,
    "long": long,
}


def find_entries(names: Iterable[str]) -> list[Entry]:
    """The entries of groups, or single ones by ``group/beginning of the name``, in order, each file once."""
    found: list[Entry] = []
    for name in names:
        group, _, part = name.partition("/")
        if group not in GROUPS:
            raise unknown_name("group of runs", group, GROUPS)
        chosen = [entry for entry in GROUPS[group]() if entry.name.startswith(part)]
        if not chosen:
            raise unknown_name(f"run of {group}", part, [entry.name for entry in GROUPS[group]()])
        found += [entry for entry in chosen if entry.path not in {known.path for known in found}]
    return found


def again(entry: Entry, seed: int) -> Entry:
    """The same run with another seed, in a file of its own."""
    run = replace(entry.run, settings=(*entry.run.settings, f"training.seed={seed}"))
    return replace(entry, name=f"{entry.name}-seed{seed}", run=run, bundle="")


def _slug(title: str) -> str:
    kept = "".join(letter if letter.isalnum() or letter in ".-" else " " for letter in title.lower())
    return "-".join(kept.split())
