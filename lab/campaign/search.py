"""A small search for the training of each baseline, the same for all, judged by the validation data.

Three learning rates with AdamW and one with Muon, a minute each; everything else is the recipe's. The best of the four
is what the group ``tuned`` trains for three minutes, and all four stay in the results.
"""

from __future__ import annotations

import json
from pathlib import Path

from factformer.studies.cells import Training
from lab.campaign.entries import BFLOAT, DARCY_MODELS, KOLMOGOROV_MODELS, LATENT, PLUS, STEADY, Entry

NEWER_MODELS = ("unet", "convnext_unet", "transolver", "swin_transformer")
PROBLEMS = {"kolmogorov": (128, LATENT, KOLMOGOROV_MODELS), "darcy": (85, STEADY, DARCY_MODELS)}
ADAMW = ("training.optimizer=adamw", "training.weight_decay=1e-4", "training.schedule=one_cycle", "training.warmup=0.2")
CHOICES = {
    **{f"adamw-{rate}": (*ADAMW, f"training.learning_rate={rate}") for rate in ("3e-4", "1e-3", "3e-3")},
    "muon-3e-3": ("training.optimizer=muon", "training.learning_rate=3e-3"),
}
RESULTS = Path("results")


def pairs() -> list[tuple[str, str]]:
    """Every problem with every baseline."""
    return [
        (problem, model)
        for problem, (_, _, models) in PROBLEMS.items()
        for model in (*models, *NEWER_MODELS)
        if model != PLUS
    ]


def search() -> list[Entry]:
    """The four choices of each baseline."""
    found = []
    for problem, model in pairs():
        size, protocol, _ = PROBLEMS[problem]
        for choice, settings in CHOICES.items():
            run = Training(problem, model, protocol, size, (*BFLOAT, *settings))
            found.append(Entry("search", f"search-{problem}-{size}", f"{model}-{choice}", run, 1.0, choice))
    return found


def best_choice(problem: str, model: str, results: Path = RESULTS) -> str | None:
    """The choice with the smallest error on the validation data; none before all four were run."""
    size = PROBLEMS[problem][0]
    errors = {}
    for choice in CHOICES:
        path = results / f"search-{problem}-{size}" / f"{model}-{choice}.json"
        if not path.is_file():
            return None
        fields = json.loads(path.read_text(encoding="utf-8"))["fields"].values()
        errors[choice] = sum(field["relative_l2"] for field in fields)
    return min(errors, key=lambda choice: errors[choice])


def tuned(results: Path = RESULTS) -> list[Entry]:
    """Each baseline for three minutes with the best of its four choices, as far as the search was run."""
    found = []
    for problem, model in pairs():
        choice = best_choice(problem, model, results)
        if choice is not None:
            size, protocol, _ = PROBLEMS[problem]
            run = Training(problem, model, protocol, size, (*BFLOAT, *CHOICES[choice]))
            found.append(Entry("tuned", f"{problem}-{size}", f"{model}-tuned-3min", run, 3.0, choice))
    return found
