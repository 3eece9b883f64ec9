"""Checkpoints: folders that are there whole or not at all, verified by checksum when read; no pickle.

    checkpoints/update-00000400/
        tensors.safetensors     weights, their average, optimiser state, states of the random generators
        metrics.jsonl           the log up to this update
        checkpoint.json         everything else, with the SHA-256 of the other two and of itself

A checkpoint is written to a hidden folder beside its place, flushed to the disk and renamed. After a
roll-back the run continues as another ``attempt``, whose checkpoints are named ``update-00000400.1`` and
count as later.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from factformer._support.files import FULL, file_checksum, flush
from factformer._support.run_names import METRICS
from factformer._support.text import first_line
from factformer.errors import UserError

FORMAT = "factformer checkpoint"
FORMAT_VERSION = 1
TENSORS, DESCRIPTION = "tensors.safetensors", "checkpoint.json"
NAME = re.compile(r"update-(\d{8,})(?:\.(\d+))?")
HIDDEN = ".partial-"


@dataclass(frozen=True)
class Snapshot:
    """The state of a run after ``state["update"]`` updates."""

    tensors: dict[str, Tensor]
    state: dict[str, Any]
    metrics: str


def name_of(update: int, attempt: int = 0) -> str:
    return f"update-{update:08d}" + (f".{attempt}" if attempt else "")


def checkpoints(folder: Path) -> list[Path]:
    """All checkpoints, oldest first."""
    found = []
    if folder.is_dir():
        for path in folder.iterdir():
            match = NAME.fullmatch(path.name)
            if match and path.is_dir():
                found.append(((int(match[2] or 0), int(match[1])), path))
    return [path for _, path in sorted(found)]


def latest(folder: Path) -> Path | None:
    """The checkpoint to resume from."""
    found = checkpoints(folder)
    return found[-1] if found else None


def save(folder: Path, snapshot: Snapshot) -> Path:
    """Write a checkpoint; what is there under the same name is complete and equal, and stays."""
    target = folder / name_of(snapshot.state["update"], snapshot.state.get("attempt", 0))
    if target.exists():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=HIDDEN, dir=folder))
    try:
        save_file({name: t.contiguous() for name, t in snapshot.tensors.items()}, scratch / TENSORS)
        (scratch / METRICS).write_text(snapshot.metrics, encoding="utf-8")
        description: dict[str, Any] = {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "state": snapshot.state,
            "tensors": _describe(snapshot.tensors),
            "sha256": {name: file_checksum(scratch / name) for name in (TENSORS, METRICS)},
        }
        description["checksum"] = _digest(description)
        (scratch / DESCRIPTION).write_text(json.dumps(description, indent=1) + "\n", encoding="utf-8")
        shutil.copymode(scratch / DESCRIPTION, scratch / TENSORS)  # safetensors keeps its files from everyone else
        scratch.chmod(0o755)
        for name in (TENSORS, METRICS, DESCRIPTION):
            flush(scratch / name)
        flush(scratch)
        os.replace(scratch, target)
        flush(folder)
    except (OSError, SafetensorError) as error:
        raise UserError(describe_write_error(target, error)) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def load(path: Path) -> Snapshot:
    """Read a checkpoint and verify every byte of it."""
    try:
        description = _read_description(path)
        for name in (TENSORS, METRICS):
            file = path / name
            if not file.is_file():
                raise corrupted(path, f"{name} is missing")
            if file_checksum(file) != description["sha256"].get(name):
                raise corrupted(path, f"{name} does not match its checksum")
        tensors = load_file(path / TENSORS)
        metrics = (path / METRICS).read_text(encoding="utf-8")
    except (SafetensorError, UnicodeDecodeError, RecursionError) as error:
        raise corrupted(path, first_line(error)) from None
    except OSError as error:
        raise UserError(f"cannot read checkpoint {path}: {error.strerror or error}") from error
    described = description.get("tensors")  # older versions wrote none
    if described is not None and described != _describe(tensors):
        raise corrupted(path, f"{TENSORS} holds other tensors than {DESCRIPTION} says")
    state = description["state"]
    numbers = [state.get("update"), state.get("attempt", 0)]
    if not all(isinstance(number, int) for number in numbers) or path.name != name_of(*numbers):
        raise corrupted(path, f"it says that it is of update {numbers[0]!r}, attempt {numbers[1]!r}")
    return Snapshot(tensors, state, metrics)


def _describe(tensors: Mapping[str, Tensor]) -> dict[str, list[Any]]:
    """Number format and shape of each tensor."""
    return {name: [str(tensor.dtype), *tensor.shape] for name, tensor in tensors.items()}


def is_ours(path: Path) -> bool:
    """Whether something in the folder of checkpoints is one, or what is left of one, and holds nothing else."""
    if path.is_symlink() or not path.is_dir() or not (NAME.fullmatch(path.name) or path.name.startswith(HIDDEN)):
        return False
    return {item.name for item in path.iterdir()} <= {TENSORS, METRICS, DESCRIPTION}


def prune(folder: Path, keep_last: int, best: str | None) -> None:
    """Remove all but the last ``keep_last`` checkpoints and the one named ``best``."""
    for path in checkpoints(folder)[:-keep_last]:
        if path.name != best:
            doomed = path.with_name(f"{HIDDEN}{path.name}")  # renamed first: never a half-removed checkpoint
            os.replace(path, doomed)
            shutil.rmtree(doomed, ignore_errors=True)


def clean(folder: Path) -> None:
    """Remove what a killed process left half-written or half-removed."""
    for path in folder.glob(f"{HIDDEN}*"):
        shutil.rmtree(path, ignore_errors=True)


def is_disk_full(error: Exception) -> bool:
    """Whether a write failed for want of space; safetensors says so in words."""
    if isinstance(error, OSError):
        return error.errno in FULL
    return "No space left" in str(error) or "File too large" in str(error)


def describe_write_error(path: Path, error: Exception) -> str:
    """One line for a failed write; a full disk is named as such."""
    if is_disk_full(error):
        return f"the disk is full: {path} could not be written; free some space and resume with --resume"
    return f"cannot write {path}: {getattr(error, 'strerror', None) or error}"


def _read_description(path: Path) -> dict[str, Any]:
    file = path / DESCRIPTION
    if not file.is_file():
        raise corrupted(path, f"{DESCRIPTION} is missing")
    try:
        description = json.loads(file.read_text(encoding="utf-8"))
        checksum = description.pop("checksum")
    except (ValueError, KeyError, AttributeError, TypeError):
        raise corrupted(path, f"{DESCRIPTION} is damaged") from None
    if description.get("format") != FORMAT or checksum != _digest(description):
        raise corrupted(path, f"{DESCRIPTION} does not match its checksum")
    if description.get("version") != FORMAT_VERSION:
        raise UserError(
            f"{path} has checkpoint version {description.get('version')!r}, this program reads {FORMAT_VERSION}; "
            "install a matching version"
        )
    if not isinstance(description.get("state"), dict) or not isinstance(description.get("sha256"), dict):
        raise corrupted(path, f"{DESCRIPTION} is damaged")
    return dict(description)


def corrupted(path: Path, why: str) -> UserError:
    return UserError(f"checkpoint {path} is corrupted: {why}; remove this folder to resume from the one before")


def _digest(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
