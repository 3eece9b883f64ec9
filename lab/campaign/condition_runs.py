"""Runs of surrogates that are told a parameter or the time step, beside specialists that are not."""

from __future__ import annotations

from factformer.studies.cells import Training
from lab.campaign.datasets import REYNOLDS, STEPS
from lab.campaign.entries import BFLOAT, LATENT, PLUS, Entry

STRIDES = tuple(int(step) for step in STEPS if step == int(step))
PATCHED = ("model.patch=2", "data.num_context_frames=2")
"""Of all these runs: an update costs less, and windows of long steps stay short."""


def _updates(count: int) -> tuple[str, ...]:
    """As many updates for all that are compared: then they need not have the GPU to themselves."""
    return ("training.budget_minutes=null", f"training.updates={count}")


def _name(name: str, updates: int) -> str:
    return f"{name}-{updates // 1000}k"


def reynolds() -> list[Entry]:
    """Kolmogorov flow over Reynolds numbers, judged at single ones; a specialist at each of these.

    All have as many updates, on as many trajectories.
    """
    names, updates = tuple(f"kolmogorov_reynolds-{number}" for number in REYNOLDS), 20_000
    settings = (*BFLOAT, *PATCHED, "protocol.stride=2", *_updates(updates))
    run = Training("kolmogorov_reynolds", PLUS, LATENT, 128, settings)
    folder, bundle = "kolmogorov_reynolds-128", "kolmogorov-reynolds"
    title = "Re 200 to 2000"
    whole = Entry("reynolds", folder, _name("all", updates), run, 2.5, title, bundle=bundle, judged_on=names)
    specialists = [
        Entry("reynolds", folder, _name(str(number), updates), run, 2.5, f"Re {number} alone", data=name)
        for number, name in zip(REYNOLDS, names, strict=True)
    ]
    return [whole, *specialists]


def steps() -> list[Entry]:
    """One surrogate for several time steps, judged at each of them and between, and a specialist for each.

    It has as many updates as one specialist, and again as many as all of them together.
    """
    names = tuple(f"kolmogorov-step-{step:g}" for step in STEPS)
    folder, updates = "kolmogorov-steps-128", 10_000

    def entry(name: str, title: str, stride: str, judged: tuple[str, ...], updates: int = updates) -> Entry:
        settings = (*BFLOAT, *PATCHED, f"protocol.stride={stride}", *_updates(updates))
        run = Training("kolmogorov", PLUS, LATENT, 128, settings)
        return Entry("steps", folder, _name(name, updates), run, updates / 10_000, title, judged_on=judged)

    every, title = "[" + ",".join(map(str, STRIDES)) + "]", f"steps {', '.join(map(str, STRIDES))}"
    return [
        entry("all", title, every, names),
        *(entry(f"{s}", f"step {s} alone", str(s), (f"kolmogorov-step-{s}",)) for s in STRIDES),
        entry("all", f"{title}, longer", every, names, updates * len(STRIDES)),
    ]
