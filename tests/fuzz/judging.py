"""What no command may do, whatever it is given, and what a file that is accepted must give."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from arena import RAW, Arena, Outcome
from array_mutators import SECRET
from artefacts import Kit

MEGABYTES = 1000
LINE = 1000
PROGRESS = re.compile(
    r"[^:]*: \d+/\d+ .*|training in .*|resumed after update .*|update .*|a surrogate of .* does not use .* yet: .*"
)
"""Lines that inform of what is being done."""
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]")

Check = Callable[[Arena], str | None]
"""Looks at what an accepted input came to: None, or what is wrong with it."""


def judge(outcome: Outcome) -> str | None:
    """What a command did wrong; None if it did well."""
    lines = outcome.err.splitlines()
    complaints = [line for line in lines if not PROGRESS.fullmatch(line)]
    if outcome.seconds == float("inf"):
        return "hangs"
    if outcome.signal:
        return f"dies of signal {outcome.signal}"
    if outcome.code == RAW or "Traceback" in outcome.err:
        return f"traceback of {lines[-1].split(':')[0] if lines else '?'}"
    if outcome.code == 1 and "--debug" in outcome.err:
        return f"raw {complaints[-1].removeprefix('factformer: ').split(':')[0]}"
    if outcome.code not in (0, 1, 2, 3):
        return f"exit code {outcome.code}"
    if outcome.megabytes > MEGABYTES:
        return f"takes {outcome.megabytes:.0f} MB"
    if outcome.code in (1, 2) and len(complaints) != 1:
        return f"{len(complaints)} lines instead of one"
    if outcome.code in (1, 2) and len(complaints[0]) > LINE:
        return f"a line of {len(complaints[0])} characters"
    if outcome.code == 0 and complaints:
        return f"done, but complains: {complaints[-1][:60]}"
    if CONTROL.search(outcome.err + outcome.out):
        return "prints control characters"
    return None


def anything(_: Arena) -> str | None:
    """No numbers are known to compare with."""
    return None


def same_prediction(kit: Kit, folder: Path) -> Check:
    """The predicted frames are those of the undamaged files, to the bit."""
    return lambda _: None if _bytes(folder / "p.npy") == kit.prediction else "accepted with other predictions"


def finite_prediction(folder: Path) -> Check:
    return lambda _: None if np.isfinite(np.load(folder / "p.npy")).all() else "accepted, predictions not finite"


def own_prediction(kit: Kit, folder: Path) -> Check:
    """Finite frames that come from the file itself: not from another one that it points to."""
    pointed = (folder / SECRET).exists()
    return same_prediction(kit, folder) if pointed else finite_prediction(folder)


def same_scores(kit: Kit, folder: Path) -> Check:
    """The errors are those of the undamaged files, to the bit."""

    def check(_: Arena) -> str | None:
        found = json.loads(_bytes(folder / "evaluation.json") or b"{}").get("fields")
        return None if found == kit.scores else "accepted with other errors"

    return check


def same_weights(kit: Kit, run: Path) -> Check:
    """Training ended with the weights of the undamaged files, to the bit."""
    file = run / "bundle" / "model.safetensors"
    return lambda _: None if _bytes(file) == kit.weights else "accepted with other weights"


def same_dataset(kit: Kit, file: Path) -> Check:
    """The undamaged values and problem were stored."""

    def check(_: Arena) -> str | None:
        values, problem = _stored(file)
        if problem != kit.problem:
            return "accepted with another problem"
        return None if np.array_equal(values, kit.values) else "accepted with other values"

    return check


def values_of(source: Path, kit: Kit, file: Path) -> Check:
    """The undamaged values were stored, or those that the library of the format reads in ``source`` as it is now."""

    def check(arena: Arena) -> str | None:
        values, _ = _stored(file)
        if np.array_equal(values, kit.values):
            return None
        arena.run([source.name, "plain.npz"], source.parent, task="read")
        found = _arrays(source.with_name("plain.npz"))
        return None if any(_holds(each, values) for each in found) else "accepted with other values"

    return check


def _bytes(file: Path) -> bytes:
    """What a regular file holds; a FIFO or a device that stands in its place would never end."""
    return file.read_bytes() if file.is_file() else b""


def _stored(file: Path) -> tuple[np.ndarray[Any, Any], dict[str, Any]]:
    with h5py.File(file) as data:
        return data["t0_fields/u"][...], json.loads(data.attrs["problem"])


def _arrays(path: Path) -> list[np.ndarray[Any, Any]]:
    if not path.exists():
        return []
    with np.load(path) as archive:
        return list(archive.values())


def _holds(values: np.ndarray[Any, Any], stored: np.ndarray[Any, Any]) -> bool:
    """Whether ``stored`` is this array, or as MATLAB has it, in single precision."""
    with np.errstate(over="ignore"):
        single = values.astype("f4")
    return any(np.array_equal(each.ravel(), stored.ravel()) for each in (single, single.T))
