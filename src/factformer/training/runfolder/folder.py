"""The run folder: ``config.yaml``, ``metrics.jsonl``, ``checkpoints/``, ``bundle/``, ``environment.json``."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from factformer import __version__
from factformer.config import assignment
from factformer.data.agreement import describe_difference
from factformer.errors import UserError
from factformer.files import write_atomically
from factformer.problem import Problem
from factformer.training.experiment.definition import Experiment, differences
from factformer.training.runfolder import checkpoint

FREE_KEYS = ("data.path", "data.residence", "training.checkpoint_every", "training.keep_last")
"""Values that may change when a run goes on: they do not decide its outcome."""


class RunFolder:
    """The files of one training run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config = self.path / "config.yaml"
        self.metrics = self.path / "metrics.jsonl"
        self.checkpoints = self.path / "checkpoints"
        self.bundle = self.path / "bundle"
        self.environment = self.path / "environment.json"
        self.lines: list[str] = []

    @property
    def exists(self) -> bool:
        """Whether there is anything of a run here."""
        return any(item.exists() for item in self._files())

    def check_free(self, overwrite: bool) -> None:
        """Raise where a new run would write over another one."""
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"{self.path} is a file; a run needs a folder")
        if self.exists and not overwrite:
            raise UserError(
                f"{self.path} holds a run already; go on with it (--resume, resume=True), replace it (--overwrite, "
                "overwrite=True) or choose another folder"
            )

    def create(self, experiment: Experiment, command: str, overwrite: bool = False) -> None:
        """A fresh run; with ``overwrite`` the files of the run before go, and nothing else in the folder."""
        self.check_free(overwrite)
        try:
            for item in self._files():
                if item.is_dir():
                    shutil.rmtree(item)
                else:
                    item.unlink(missing_ok=True)
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            write_atomically(self.environment, json.dumps(environment(command), indent=2) + "\n")
            # Written last: a folder with a configuration is one that can be resumed.
            write_atomically(self.config, experiment.to_yaml())
        except OSError as error:
            raise UserError(checkpoint.describe_write_error(self.path, error)) from error

    def note_data(self, path: str) -> None:
        """Keep where the data of the run lie now: what comes after training looks for them there."""
        saved = Experiment.read(self.config)
        if path and path != saved.data.path:
            write_atomically(self.config, saved.override([assignment("data.path", path)]).to_yaml())

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
        # The configuration first: without it, what is left of a half-removed run is not taken for one.
        return [self.config, self.metrics, self.environment, self.checkpoints, self.bundle]


def check_same(saved: Experiment, wanted: Experiment, folder: Path) -> None:
    """Raise where a run would go on under another configuration than it began with.

    No ``data.resolution`` is that of the data, which the checkpoints know: what a run has noted may be an old default,
    and what is asked for now is held against the data.
    """
    unsaid = None in (saved.data.resolution, wanted.data.resolution)
    free = (*FREE_KEYS, "data.resolution") if unsaid else FREE_KEYS
    found = [item for item in differences(saved, wanted) if item.split(" ", 1)[0] not in free]
    if found:
        raise UserError(
            f"{folder} was trained with another configuration: {'; '.join(found[:3])}"
            f"{' and more' if len(found) > 3 else ''}; drop the change or choose another folder"
        )


def check_identity(path: Path, saved: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Raise where a checkpoint is of another model, dataset, seed or problem than the run that would go on from it."""
    advice = "choose another folder or start over (--overwrite, overwrite=True)"
    for key in ("model", "dataset", "seed"):
        old, new = saved.get(key), here[key]
        if old != new:
            raise UserError(f"checkpoint {path} comes from another {key}: {old!r} there, {new!r} here; {advice}")
    if "problem" not in saved:  # as older versions wrote them
        return
    there, wanted = Problem.from_dict(saved["problem"]), Problem.from_dict(here["problem"])
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
