"""Where a number comes from: command, commit, machine, seed and time, carried by every result file."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import factformer
from factformer._support.documents import json_text
from factformer._support.files import whole_file


def provenance(
    *, seed: int | None = None, seconds: float | None = None, device: torch.device | str = "cpu"
) -> dict[str, Any]:
    """What a reader needs to judge a result and to make it again."""
    return {
        "command": command(),
        "commit": commit(),
        "hardware": hardware(device),
        "seed": seed,
        "wall_seconds": None if seconds is None else round(seconds, 3),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {
            "factformer": factformer.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    }


def command() -> str:
    """The command line of this process; of the program only its name, not its folder on this machine."""
    program = Path(sys.argv[0] or "python")
    name = "factformer" if program.name == "__main__.py" and program.parent.name == "factformer" else program.name
    return shlex.join([name, *sys.argv[1:]])


def commit() -> str | None:
    """The commit of the source tree this package is imported from, ``+`` when it holds other changes.

    A copy of the tree without its history can be told with ``FACTFORMER_COMMIT``.
    """
    if os.environ.get("FACTFORMER_COMMIT"):
        return os.environ["FACTFORMER_COMMIT"]
    folder = Path(__file__).resolve().parent
    head = _git(folder, "rev-parse", "HEAD")
    if not head or _git(folder, "ls-files", "--error-unmatch", Path(__file__).name) is None:
        return None  # installed, or inside a tree that is not ours
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no", "--", "..")
    return head[:12] + ("+" if changed else "")


def hardware(device: torch.device | str = "cpu") -> str:
    """The machine in words: the accelerator's name, or the processor and the threads in use."""
    device = torch.device(device)
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    threads = torch.get_num_threads()
    return f"{_processor()}, {threads} thread{'s' * (threads != 1)}"


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write strict JSON at once: a reader never sees half a file, and a number that is not finite is null."""
    with whole_file(path) as partial:
        partial.write_text(json_text(values), encoding="utf-8")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
