"""The run folder: ``config.yaml``, ``metrics.jsonl``, ``checkpoints/``, ``bundle/``, ``environment.json``."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from factformer import __version__
from factformer._support import run_names as names
from factformer._support.files import MARK, write_atomically
from factformer._support.lock import locked
from factformer.config import assignment
from factformer.data.agreement import describe_difference
from factformer.errors import UserError
from factformer.problem import Problem
from factformer.training.experiment.definition import Experiment, differences
from factformer.training.runfolder import checkpoint
from factformer.zoo.description import DESCRIPTION
from factformer.zoo.index import BUNDLE_FILES

FREE_KEYS = ("data.path", "data.residence", "training.checkpoint_every", "training.keep_last")
"""Values that may change when a run is resumed: they do not decide its outcome."""
GROWING = ("updates", "budget_minutes")
"""Values of the training that may be larger when a run is resumed: it is prolonged."""
REMOVED = ".removed-"
LEFTOVER = re.compile(
    rf"{re.escape(REMOVED)}\w+"
    rf"|\.({re.escape(names.CONFIG)}|{re.escape(names.METRICS)}|{re.escape(names.ENVIRONMENT)})\.[0-9a-f-]+\.tmp"
    rf"|\.{names.BUNDLE}-(\w{{8}}|{MARK})"
)
"""Names that our writers give to what is not whole yet, or no longer."""
MOST_READ = 100_000


class RunFolder:
    """The files of one training run; a process writes and removes them while it has them `locked`."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config = self.path / names.CONFIG
        self.metrics = self.path / names.METRICS
        self.checkpoints = self.path / names.CHECKPOINTS
        self.bundle = self.path / names.BUNDLE
        self.environment = self.path / names.ENVIRONMENT
        self.lines: list[str] = []

    @contextmanager
    def locked(self, command: str = "") -> Iterator[None]:
        """Keep other processes out; what a killed one has left half-written or half-removed goes."""
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"{self.path} is a file; a run needs a folder")
        with locked(self.path, command):
            self.clean()
            yield

    def clean(self) -> None:
        """Remove hidden leftovers of our own writers."""
        for path in list(self.path.iterdir()):
            if LEFTOVER.fullmatch(path.name):
                _remove(path)
        if self.checkpoints.is_dir():
            checkpoint.clean(self.checkpoints)

    def check_free(self, overwrite: bool) -> None:
        """Raise where a new run would write over another one, or over files that are not a run's."""
        held = [item.name for item in self._files() if os.path.lexists(item)]
        if held and not overwrite:
            raise UserError(
                f"{self.path} holds a run already; resume it (--resume, resume=True), replace it (--overwrite, "
                "overwrite=True) or choose another folder"
            )
        for item in self._files():
            if os.path.lexists(item) and not _is_ours(item):
                raise UserError(
                    f"{item} was not written by a run and is not replaced; move it or choose another folder"
                )

    def check_resumable(self) -> None:
        """Raise where there is no checkpoint to resume from, but something that a new beginning would write over."""
        if checkpoint.latest(self.checkpoints) is not None:
            if not self.config.is_file():
                raise UserError(
                    f"{self.path} has checkpoints but no {names.CONFIG}; put it back, start over with --overwrite or "
                    "choose another folder"
                )
            return
        held = [item for item in (self.bundle, self.metrics, self.checkpoints) if _holds_something(item)]
        held += [item for item in (self.config, self.environment) if os.path.lexists(item) and not _is_ours(item)]
        if held:
            raise UserError(
                f"{self.path} has no checkpoint to resume from, but holds {held[0].name}; --resume replaces nothing: "
                "start over with --overwrite or choose another folder"
            )

    def create(self, experiment: Experiment, command: str, overwrite: bool = False) -> None:
        """A fresh run; with ``overwrite`` the files of the run before go, and nothing else in the folder."""
        try:
            if overwrite:
                self.check_free(overwrite)
                self._remove_run()
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            write_atomically(self.environment, json.dumps(environment(command), indent=2) + "\n")
            # Written last: a folder with a configuration is one that can be resumed.
            write_atomically(self.config, experiment.to_yaml())
        except OSError as error:
            raise UserError(checkpoint.describe_write_error(self.path, error)) from error

    def _remove_run(self) -> None:
        """Move the files of a run aside, the configuration first: what is left is never taken for a run."""
        aside = Path(tempfile.mkdtemp(prefix=REMOVED, dir=self.path))
        for item in self._files():
            if os.path.lexists(item):
                os.replace(item, aside / item.name)
        shutil.rmtree(aside)

    def read_config(self) -> Experiment:
        """The experiment that the run was started with."""
        return Experiment.read(self.config)

    def note(self, experiment: Experiment) -> None:
        """Keep where the data of the run lie now, since what comes after training looks there, and how long it is."""
        saved = self.read_config()
        changes = {f"training.{key}": getattr(experiment.training, key) for key in GROWING}
        changes |= {"data.path": experiment.data.path} if experiment.data.path else {}
        noted = saved.override([assignment(key, value) for key, value in changes.items()])
        if noted != saved:
            write_atomically(self.config, noted.to_yaml())

    def append(self, values: dict[str, Any]) -> None:
        """One line of the log."""
        line = json.dumps(values) + "\n"
        self.lines.append(line)
        try:
            with self.metrics.open("a", encoding="utf-8") as file:
                file.write(line)
        except OSError as error:
            raise UserError(checkpoint.describe_write_error(self.metrics, error)) from error

    def reset_log(self, text: str) -> None:
        """Take the log back to what a checkpoint holds of it."""
        self.lines = text.splitlines(keepends=True)
        write_atomically(self.metrics, text)

    def _files(self) -> list[Path]:
        return [self.config, self.metrics, self.environment, self.checkpoints, self.bundle]


def _is_ours(path: Path) -> bool:
    """Whether a file or folder of a run folder looks as we write it, all that it holds included."""
    if path.is_symlink():
        return False
    if path.name == names.CHECKPOINTS:
        return path.is_dir() and all(checkpoint.is_ours(item) for item in path.iterdir())
    if path.name == names.BUNDLE:
        found = {item.name for item in path.iterdir()} if path.is_dir() else {"a file"}
        return not found or (found <= set(BUNDLE_FILES) and DESCRIPTION in found)
    if not path.is_file():
        return False
    with path.open("rb") as file:
        text = file.read(MOST_READ).decode("utf-8", errors="replace")
    if path.name == names.METRICS:
        return text.startswith(first := '{"update": ') or first.startswith(text)  # torn by a kill, or still empty
    if path.name == names.ENVIRONMENT:
        return text.startswith('{\n  "command": ')
    return text.startswith("problem: ") and "\nmodel:\n" in text


def _holds_something(path: Path) -> bool:
    if path.is_dir() and not path.is_symlink():
        return any(path.iterdir())
    return os.path.lexists(path) and (not path.is_file() or path.stat().st_size > 0)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def check_same(saved: Experiment, wanted: Experiment, where: Path) -> None:
    """Raise where a run would be resumed under another configuration than it began with; it may be prolonged.

    No ``data.resolution`` is that of the data, which the checkpoints know: what a run has noted may be an old default,
    and what is asked for now is held against the data.
    """
    unsaid = None in (saved.data.resolution, wanted.data.resolution)
    free = (*FREE_KEYS, "data.resolution") if unsaid else FREE_KEYS
    for key in GROWING:
        before, now = (getattr(part.training, key) for part in (saved, wanted))
        if before is not None and now is not None and now > before:
            free = (*free, f"training.{key}")
    found = [item for item in differences(saved, wanted) if item.split(" ", 1)[0] not in free]
    if found:
        raise UserError(
            f"{where} was trained with another configuration: {'; '.join(found[:3])}"
            f"{' and more' if len(found) > 3 else ''}; drop the change or choose another folder"
        )


def prolonged(state: Mapping[str, Any], experiment: Experiment) -> str:
    """In words, by how much a run is to be longer than the one of a checkpoint's ``state``; empty where it is not."""
    before = state.get("experiment", {}).get("training", {})
    for key in GROWING:
        now = getattr(experiment.training, key)
        if before.get(key) is not None and now is not None and now > before[key]:
            return f"training.{key} was {before[key]:g} and is {now:g} now"
    return ""


def check_identity(path: Path, saved: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Raise where a checkpoint is of another configuration, dataset or problem than the run that would use it."""
    advice = "choose another folder or start over (--overwrite, overwrite=True)"
    for key in ("model", "dataset", "seed"):
        old, new = saved.get(key), here[key]
        if old != new:
            raise UserError(f"checkpoint {path} comes from another {key}: {old!r} there, {new!r} here; {advice}")
    try:
        if "experiment" in saved:  # older versions wrote none, nor the problem
            check_same(Experiment.parse_saved(saved["experiment"]), Experiment.parse(here["experiment"]), path)
        if "problem" not in saved:
            return
        there = Problem.from_dict(saved["problem"])
    except UserError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise checkpoint.corrupted(path, f"its description is not one of ours ({error!r})") from None
    wanted = Problem.from_dict(here["problem"])
    difference = describe_difference(there, wanted)
    if not difference and there.num_context_frames != wanted.num_context_frames:
        difference = f"{there.num_context_frames} context frames expected, {wanted.num_context_frames} found"
    if difference:
        raise UserError(f"checkpoint {path} comes from another problem: {difference}; {advice}")


def versions() -> dict[str, str]:
    """Versions of what decides the numbers."""
    import lightning_fabric
    import numpy

    return {
        "factformer": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "lightning_fabric": lightning_fabric.__version__,
    }


def environment(command: str) -> dict[str, Any]:
    """Where and how a run was started."""
    cuda = torch.cuda.is_available()
    return {
        "command": command,
        "versions": versions(),
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "num_cores": os.cpu_count(),
        "num_threads": torch.get_num_threads(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if cuda else [],
        "cuda": torch.version.cuda,
        "executable": Path(sys.executable).name,
    }
