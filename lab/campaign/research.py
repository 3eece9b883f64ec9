"""Ideas that might lower the error per second of training of factformer_plus, in the rounds in which they are tried."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lab.campaign.entries import BOX_STORAGE, PLUS, Entry, variants

QUIET = ("training.noise=0",)
AT_FIRST = ("protocol.marching_steps=4", "model.local_kernel=5", *QUIET)
MUON = ("training.optimizer=muon", "training.learning_rate=3e-3")
FIRST_RECIPE = (*AT_FIRST, "training.optimizer=adamw", "training.learning_rate=1e-3", "training.batch_size=16")
SECOND_RECIPE = (*AT_FIRST, *MUON, "training.batch_size=16")
THIRD_RECIPE = (*AT_FIRST, *MUON, "training.batch_size=4")
FOURTH_RECIPE = ("protocol.marching_steps=2", "model.local_kernel=7", *QUIET, *MUON, "training.batch_size=4")
FIFTH_RECIPE = ("protocol.marching_steps=1", "model.local_kernel=7", *QUIET, *MUON, "training.batch_size=4")
SIXTH_RECIPE = (*(s for s in FIFTH_RECIPE if s not in QUIET), "training.noise=0.01")
DARCY_RECIPE = (*MUON, "training.batch_size=8")
BOX_RECIPE = (*MUON, "training.batch_size=1", BOX_STORAGE)
WHOLE_CONTEXT = ("protocol.pushforward=10", "protocol.pushforward_every=10")
"""A context that is all the model's own prediction, at about the cost of two calls at every third update."""
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
    group: str = "research"

    def entries(self) -> list[Entry]:
        changes = {title: (*self.recipe, *settings) for title, settings in self.ideas.items()}
        return variants(self.group, "research", PLUS, changes, recipe=self.problem, resolution=self.resolution)

    def bases(self) -> list[str]:
        """Titles of the recipe's own runs, with whatever seed."""
        return [
            title
            for title, settings in self.ideas.items()
            if all(setting.startswith("training.seed=") for setting in settings)
        ]


ROUNDS = (
    Round(
        "The optimiser",
        64,
        FIRST_RECIPE,
        {
            "base recipe": (),
            "Muon, learning rate 3e-3": ("training.optimizer=muon", "training.learning_rate=3e-3"),
            "Muon, learning rate 6e-3": ("training.optimizer=muon", "training.learning_rate=6e-3"),
            "learning rate 3e-3": ("training.learning_rate=3e-3",),
        },
    ),
    Round(
        "On top of Muon",
        64,
        SECOND_RECIPE,
        {
            "Muon, learning rate 3e-3": (),
            "Muon, 3e-3, local branch dilated 1, 2, 4, 8": WIDE,
        },
    ),
    Round(
        "On top of Muon, where the tables are made",
        128,
        SECOND_RECIPE,
        {
            "Muon, 3e-3, 128 points": (),
            "Muon, 3e-3, local branch dilated 1, 2, 4, 8, 128 points": WIDE,
            "Muon, 3e-3, batch 8, 128 points": ("training.batch_size=8",),
            "Muon, 3e-3, batch 4, 128 points": ("training.batch_size=4",),
        },
    ),
    Round(
        "On top of batches of four",
        128,
        THIRD_RECIPE,
        {
            "Muon, 3e-3, batch 4, 128 points": (),
            "two frames per call": ("protocol.marching_steps=2",),
            "two frames per call, local kernel 7": ("protocol.marching_steps=2", "model.local_kernel=7"),
        },
    ),
    Round(
        "On top of two frames per call and a local kernel of 7",
        128,
        FOURTH_RECIPE,
        {
            "two frames per call, local kernel 7": (),
            "one frame per call, local kernel 7": ("protocol.marching_steps=1",),
        },
    ),
    Round(
        "On top of one frame per call",
        128,
        FIFTH_RECIPE,
        {
            "one frame per call, local kernel 7": (),
            "one frame, again": ("training.seed=1",),
            "one frame, noise on the context, 1 %": ("training.noise=0.01",),
            "one frame, pushforward 10 at every tenth update": WHOLE_CONTEXT,
            "one frame, noise 1 %, pushforward 10 at every tenth update": ("training.noise=0.01", *WHOLE_CONTEXT),
        },
    ),
    Round(
        "On top of noise",
        128,
        SIXTH_RECIPE,
        {
            "one frame, noise on the context, 1 %": (),
            "noise 1 %, again": ("training.seed=1",),
            "noise 1 %, no pushforward": ("protocol.pushforward=0",),
            "noise 2 %, no pushforward": ("training.noise=0.02", "protocol.pushforward=0"),
            "noise 2 %": ("training.noise=0.02",),
            "noise 0.5 %": ("training.noise=0.005",),
            "noise 1 %, learning rate 6e-3": ("training.learning_rate=6e-3",),
            "noise 1 %, batch 2": ("training.batch_size=2",),
            "noise 1 %, local kernel 9": ("model.local_kernel=9",),
            "noise 1 %, deeper: 6 layers": ("model.depth=6",),
            "noise 1 %, narrower: 96 channels": ("model.dim=96",),
            "noise 1 %, H1 term, weight 0.1": ("training.gradient_loss=0.1",),
            "noise 1 %, gradients through two calls in the last third": (
                "protocol.calls=2",
                "protocol.calls_from=0.67",
            ),
            "noise 1 %, axes contracted in parallel": ("model.contraction=parallel",),
        },
    ),
    Round(
        "Darcy flow",
        85,
        DARCY_RECIPE,
        {
            "Darcy flow, bfloat16": (),
            "Darcy flow, float32": ("training.precision=32-true",),
            "Darcy flow, batch 4": ("training.batch_size=4",),
            "Darcy flow, local kernel 7": ("model.local_kernel=7",),
        },
        "darcy",
        noise=0.001,
    ),
    Round(
        "Darcy flow, 211 points",
        211,
        DARCY_RECIPE,
        {
            "Darcy flow, 211 points": (),
            "Darcy flow, 211 points, batch 4": ("training.batch_size=4",),
            "Darcy flow, 211 points, batch 2": ("training.batch_size=2",),
            "Darcy flow, 211 points, local branch dilated 2": ("model.local_dilations=[2]",),
            "Darcy flow, 211 points, dilated 2, batch 4": ("model.local_dilations=[2]", "training.batch_size=4"),
            "Darcy flow, 211 points, every second point first": ("model.local_dilations=[2]", "protocol.coarse=2"),
            "Darcy flow, 211 points, every third point first": ("model.local_dilations=[3]", "protocol.coarse=3"),
            "Darcy flow, 211 points, every second point first, neighbours": ("protocol.coarse=2",),
            "Darcy flow, 211 points, every second point for half the time, neighbours": (
                "protocol.coarse=2",
                "protocol.coarse_until=0.5",
            ),
        },
        "darcy",
        noise=0.001,
    ),
    Round(
        "Smoke",
        64,
        ("protocol.marching_steps=4", *BOX_RECIPE),
        {
            "smoke": (),
            "smoke, learning rate 6e-3": ("training.learning_rate=6e-3",),
            "smoke, two frames per call": ("protocol.marching_steps=2",),
            "smoke, one frame per call": ("protocol.marching_steps=1",),
        },
        "smoke",
    ),
    Round(
        "Smoke, one frame per call",
        64,
        ("protocol.marching_steps=1", *BOX_RECIPE),
        {
            "smoke, one frame per call": (),
            "smoke, one frame, local branch dilated 2, 4, 8": ("model.local_dilations=[2,4,8]",),
            "smoke, one frame, local kernel 5": ("model.local_kernel=5",),
            "smoke, one frame, noise 1 %": ("training.noise=0.01",),
        },
        "smoke",
    ),
    Round(
        "Turbulence",
        60,
        ("protocol.marching_steps=2", *BOX_RECIPE),
        {
            "turbulence": (),
            "turbulence, one frame per call": ("protocol.marching_steps=1",),
            "turbulence, noise 1 %": ("training.noise=0.01",),
            "turbulence, one frame per call, noise 1 %": ("protocol.marching_steps=1", "training.noise=0.01"),
            "turbulence, one frame per call, local kernel 5": ("protocol.marching_steps=1", "model.local_kernel=5"),
        },
        "turbulence",
    ),
)
"""What might lower the error per second of training of factformer_plus, in the order in which it is tried."""


def research() -> list[Entry]:
    """The ideas of the research log, each once."""
    return of_rounds(ROUNDS)


def of_rounds(rounds: Sequence[Round]) -> list[Entry]:
    """The ideas of some rounds, each once."""
    known: dict[str, Entry] = {}
    for part in rounds:
        for entry in part.entries():
            known.setdefault(entry.path, entry)
    return list(known.values())
