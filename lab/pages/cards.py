"""The card of a bundle in the zoo: data, recipe, errors, limits, from the bundle and the result file of its run."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from factformer.problem import Problem
from factformer.zoo.description import DESCRIPTION
from lab.pages.findings import Finding, with_spread

LIMITS = {
    "kolmogorov_flow": (
        "One flow regime (Re = 1000, forcing wavenumber 8, drag 0.1). Other Reynolds numbers, forcings or frame\n"
        "intervals are outside of what it has seen, and roll-outs of more than a few seconds lose the true\n"
        "trajectory, as the flow is chaotic."
    ),
    "isotropic_turbulence": (
        "One viscosity and one kind of forcing, within the first second after a random start. The field `pressure` is\n"
        "the Bernoulli pressure p + |u|²/2; predicted velocities are not exactly free of divergence."
    ),
    "smoke_buoyancy": (
        "One closed box of 8 × 8 × 8 with smooth initial blobs of smoke, viscosity 0.003 and buoyancy 0.5. Velocities\n"
        "are those at the lower face of each cell; they are not exactly free of divergence."
    ),
    "darcy_flow": (
        "Piecewise constant coefficients of 3 and 12 with the smoothness of the training set, zero on the boundary\n"
        "and a constant source. Other contrasts and other sources are outside of what it has seen."
    ),
}


UNRELATED = math.sqrt(2)
"""Relative error of a field that has the size of the true one and nothing else in common with it."""


def write_cards(zoo: Path, found: Mapping[str, Finding]) -> dict[Path, str]:
    """The text of the card of every bundle under ``zoo``, by the path it belongs to."""
    cards = {}
    for description in sorted(zoo.glob(f"*/{DESCRIPTION}")):
        values = json.loads(description.read_text(encoding="utf-8"))
        finding = run_of(values["provenance"], found)
        if finding is not None:
            cards[description.parent / "README.md"] = card(description.parent.name, values, finding)
    return cards


def run_of(provenance: Mapping[str, Any], found: Mapping[str, Finding]) -> Finding | None:
    """The result file of the very run that a bundle comes from."""
    keys = ("updates", "training_seconds", "dataset", "seed")
    for finding in found.values():
        if all(finding.result["training"].get(key) == provenance.get(key) for key in keys):
            return finding
    return None


def card(name: str, description: Mapping[str, Any], finding: Finding) -> str:
    """The card as Markdown."""
    result, provenance = finding.result, description["provenance"]
    problem = Problem.from_dict(description["problem"])
    shape = " × ".join(map(str, result["grid"]))
    fields = ", ".join(item.name for item in problem.state)
    training = finding.training
    if not problem.num_context_frames:
        task = f"{', '.join(item.name for item in problem.static)} in, {fields} out, in physical units"
    else:
        task = (
            f"{problem.num_context_frames} frames at intervals of {problem.frame_dt:g} in, "
            f"{description['marching_steps']} per call out, {fields} in physical units"
        )
    data = result.get("data")
    made = f"{data['train']} training solutions: `{data['command'].partition(';')[0]}`" if data else "see `bundle.json`"
    options = [
        f"{training['optimizer']}, learning rate {training['learning_rate']:g}, batch {training['batch_size']}, "
        f"{training['precision']}",
        "symmetries of the equation as augmentation" if training["augment"] else "no augmentation",
        f"moving average of the weights ({training['ema_decay']:g})" if training["ema_decay"] else "last weights",
        f"seed {training['seed']}",
    ]
    beside = " beside another run" if finding.beside else ""
    cost = f"{finding.minutes:.1f} minutes on {result['hardware']}{beside}, {finding.updates:,} updates"
    rows = [
        ("task", task),
        ("data", made),
        ("training", "; ".join(filter(None, (cost, finding.trouble)))),
        ("recipe", "; ".join(options)),
    ]
    for field, errors in result["fields"].items():
        last = "" if not problem.num_context_frames else f", last frame {errors['relative_l2_final']:.4f}"
        floor = f"{result['floor']} {errors['persistence']['relative_l2']:.3f}"
        rows.append((f"error, {field}", f"relative L2 {finding.shown(field)}{last}; {floor}"))
    stored = result.get("stored_float16")
    if stored:
        for field, errors in stored["fields"].items():
            error = with_spread(errors["relative_l2"], errors["standard_error"])
            rows.append((f"stored in float16, {field}", f"{error} on the same windows"))
    far = result.get("beyond")
    if far:
        for field, errors in far["fields"].items():
            error = with_spread(errors["relative_l2_final"], errors["standard_error_final"])
            rows.append((f"frame {far['num_frames']} of a longer roll-out, {field}", error))
    for size, other in result.get("transfer", {}).items():
        for field, errors in other["fields"].items():
            error = with_spread(errors["relative_l2"], errors["standard_error"])
            rows.append((f"applied to {size} points per axis, {field}", error))
    rows.append(("measured in", f"`results/{finding.path}`"))
    lines = [
        f"# {name}",
        "",
        f"`{finding.model}` for `{problem.name}` on {shape} points, {result['parameters']:,} parameters.",
        "",
        f'    surrogate = factformer.load("{name}")',
        "",
        "| | |",
        "|---|---|",
        *(f"| {key} | {value} |" for key, value in rows),
        "",
        f"Trained at commit {result['commit']} with `{provenance['command']}`.",
        "",
        f"Limits: {LIMITS.get(problem.name, 'what it was trained on.')}{_warning(far)}",
        "",
    ]
    return "\n".join(lines)


def _warning(far: Mapping[str, Any] | None) -> str:
    text = leaves(far)
    return f"\n\n**Not for longer roll-outs**: {text}." if text else ""


def leaves(far: Mapping[str, Any] | None) -> str:
    """Says so where longer roll-outs end further from the true field than an unrelated one would be."""
    fields: Mapping[str, Any] = far["fields"] if far else {}
    for field, errors in fields.items():
        curve = errors["relative_l2_per_frame"]
        if curve[-1] > UNRELATED:
            frame = next(k for k, error in enumerate(curve, 1) if error > UNRELATED)
            return f"from frame {frame} on, {field} is further off than an unrelated field"
    return ""
