"""Commands that are stopped at a file-system event and run again: what is left must be as if nothing had happened."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arena import KILLED, Arena, Outcome
from artefacts import EVALUATE, Kit
from judging import judge

ADVICE = ("--resume", "--overwrite")
FREE_KEYS = re.compile(r".*seconds.*|peak_memory.*|created|command|checksum|description_sha256|metrics.jsonl")
"""What a clock decides, or the flags of the command: times, and checksums of what holds times."""
FIGURES = EVALUATE.replace("--no-figures", "--figures")
COMMANDS = {
    "generate": "generate kolmogorov_flow --preset tiny --resolution 16 --simulation-resolution 32 --trajectories 2 "
    "--batch-size 1 --set num_frames=2 --set warmup=0 --split train --split test --out new",
    "convert": "convert frames.npy --problem waves.yaml --out new/train.hdf5",
    "convert again": "convert frames.npy --problem waves.yaml --out data/train.hdf5 --overwrite",
    "train": "train config.yaml --data data --quiet --out new",
    "train resumed": "train --resume --out half --quiet",
    "train again": "train config.yaml --data data --quiet --out run --overwrite --set training.learning_rate=0.001",
    "evaluate": f"evaluate run {FIGURES} --out new",
    "evaluate again": f"evaluate run {FIGURES}",
    "rollout": "rollout bundle --input frames.npy --frames 2 --out p.npy --animate p.gif",
    "report": "report run --out new",
    "inspect": "inspect run --samples 1 --out new",
}
Tree = dict[str, Any]


@dataclass(frozen=True)
class Straight:
    """A command that nobody stopped: its events, and the files it leaves."""

    events: list[str]
    tree: Tree


def run_straight(arena: Arena, kit: Kit, folder: Path, command: str) -> Straight:
    """Run a command to its end."""
    _fresh(kit, folder)
    outcome = arena.run(command.split(), folder, stop_at=0)
    assert outcome.code == 0, outcome
    log = folder.with_name(f"{folder.name}.events")
    events = log.read_text(encoding="utf-8").splitlines()
    log.unlink()
    return Straight(events, read_tree(folder))


def kill(arena: Arena, kit: Kit, folder: Path, command: str, straight: Straight, number: int) -> str | None:
    """Stop a command at an event, run it again as its user would be told to; None, or what is wrong then."""
    _fresh(kit, folder)
    outcome = arena.run(command.split(), folder, stop_at=number)
    if outcome.code != KILLED:
        return f"not stopped: {outcome.code} {outcome.err[-200:]}"
    outcome, told = _run_again(arena, folder, command)
    if outcome.code != 0:
        return f"run again: exit code {outcome.code}: {' then '.join(told)}"
    return compare(straight.tree, read_tree(folder))


def _run_again(arena: Arena, folder: Path, command: str) -> tuple[Outcome, list[str]]:
    """The same command, with the flags that its one-line answers name."""
    told: list[str] = []
    while True:
        outcome = arena.run(command.split(), folder)
        told.append(outcome.err.strip()[-300:])
        advice = [flag for flag in ADVICE if flag in outcome.err and flag not in command]
        if outcome.code != 2 or judge(outcome) or not advice:
            return outcome, told
        command = f"{command} {advice[0]}"


def compare(expected: Tree, found: Tree) -> str | None:
    """The same files with the same contents, but for what a clock decides; None, or the first difference."""
    if found.keys() != expected.keys():
        more, fewer = sorted(found.keys() - expected.keys()), sorted(expected.keys() - found.keys())
        return f"left over: {more}" if more else f"missing: {fewer}"
    return next((f"{name} differs" for name, content in expected.items() if content != found[name]), None)


def read_tree(folder: Path) -> Tree:
    """Every file below a folder, JSON and lines of JSON as values; hidden ones too, and empty folders."""
    tree: Tree = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        tree[name if path.is_file() else f"{name}/"] = _content(path) if path.is_file() else None
    return tree


def _content(path: Path) -> Any:
    content = path.read_bytes()
    try:
        if path.suffix == ".json":
            return _timeless(json.loads(content))
        if path.suffix == ".jsonl":
            return [_timeless(json.loads(line)) for line in content.splitlines()]
    except ValueError:  # torn
        pass
    return content


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _timeless(item) for key, item in value.items() if not FREE_KEYS.fullmatch(key)}
    return [_timeless(item) for item in value] if isinstance(value, list) else value


def _fresh(kit: Kit, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(kit.folder, folder)
