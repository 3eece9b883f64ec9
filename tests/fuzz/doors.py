"""The doors through which a stranger's files come in: what is damaged, and which command meets it."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import array_mutators
import h5py
import mutators
from arena import Arena, Outcome
from artefacts import ARRAYS, CONVERT, EVALUATE, PREDICT, Kit
from judging import (
    Check,
    anything,
    finite_prediction,
    judge,
    own_prediction,
    same_dataset,
    same_prediction,
    same_scores,
    same_weights,
    values_of,
)

from factformer.zoo.description import CHECKSUM, description_checksum

TRAIN = "--quiet --max-minutes 0.05"
"""However long a damaged configuration makes training, it stops after three seconds."""


@dataclass(frozen=True)
class Attack:
    """What was damaged, the command that meets it, and what must hold where it is accepted."""

    what: str
    words: Sequence[str]
    check: Check = anything


Door = Callable[[Random, Kit, Path], Attack]


@dataclass(frozen=True)
class Failure:
    """An input that was not met as it should be; seed, door and index make it again."""

    door: str
    index: int
    what: str
    words: Sequence[str]
    reason: str
    message: str


def attack(arena: Arena, kit: Kit, folder: Path, seed: int, door: str, index: int) -> tuple[Outcome, Failure | None]:
    """Make input ``index`` of a door in ``folder``, run the command on it and judge the outcome."""
    folder.mkdir(parents=True)
    try:
        made = DOORS[door](Random(f"{seed} {door} {index}"), kit, folder)
        outcome = arena.run(made.words, folder)
        reason = judge(outcome) or (made.check(arena) if outcome.code == 0 else None)
        message = (outcome.err.strip().splitlines() or [""])[-1][:300]
        return outcome, Failure(door, index, made.what, made.words, reason, message) if reason else None
    finally:
        shutil.rmtree(folder)


def bundle(rng: Random, kit: Kit, folder: Path) -> Attack:
    """A damaged bundle is rolled out or evaluated."""
    kit.copy(folder, "bundle")
    what, structured = _damage(rng, folder / "bundle" / rng.choice(("bundle.json", "model.safetensors")))
    signed = structured and rng.random() < 0.5 and _sign_bundle(folder / "bundle")
    if rng.random() < 0.7:
        check = finite_prediction(folder) if signed else same_prediction(kit, folder)
        return Attack(what, f"rollout bundle --input frames.npy {PREDICT}".split(), check)
    check = anything if signed else same_scores(kit, folder / "e")
    return Attack(what, f"evaluate bundle --data data --out e {EVALUATE}".split(), check)


def checkpoint(rng: Random, kit: Kit, folder: Path) -> Attack:
    """A run is resumed from a damaged checkpoint."""
    kit.copy(folder, "half")
    place = folder / "half" / "checkpoints" / "update-00000002"
    what, structured = _damage(rng, place / rng.choice(("checkpoint.json", "tensors.safetensors", "metrics.jsonl")))
    signed = structured and rng.random() < 0.5 and _sign_checkpoint(place)
    check = anything if signed else same_weights(kit, folder / "half")
    return Attack(what, f"train --resume --out half {TRAIN}".split(), check)


def dataset(rng: Random, kit: Kit, folder: Path) -> Attack:
    """A damaged file of our data is evaluated on, trained on, rolled out from or converted."""
    command, check, file = rng.choice(
        [
            (f"evaluate run --data data --out e {EVALUATE}", same_scores(kit, folder / "e"), "test.hdf5"),
            (f"train config.yaml --data data --out r {TRAIN}", same_weights(kit, folder / "r"), "train.hdf5"),
            (f"train config.yaml --data data --out r {TRAIN}", same_weights(kit, folder / "r"), "valid.hdf5"),
            (f"rollout bundle --input data/test.hdf5 --start 9 {PREDICT}", same_prediction(kit, folder), "test.hdf5"),
            ("convert data/test.hdf5 --out c/test.hdf5", same_dataset(kit, folder / "c" / "test.hdf5"), "test.hdf5"),
        ]
    )
    kit.copy(folder, f"data/{file}")
    return Attack(_damage(rng, folder / "data" / file)[0], command.split(), check)


def array(rng: Random, kit: Kit, folder: Path) -> Attack:
    """A damaged file of arrays is converted or rolled out from."""
    name = rng.choice(ARRAYS)
    kit.copy(folder, name)
    what, _ = _damage(rng, folder / name)
    if rng.random() < 0.6:
        check = values_of(folder / name, kit, folder / "converted" / "test.hdf5")
        return Attack(what, f"convert {name} {CONVERT}".split(), check)
    return Attack(what, f"rollout bundle --input {name} {PREDICT}".split(), own_prediction(kit, folder))


def configuration(rng: Random, kit: Kit, folder: Path) -> Attack:
    """A damaged YAML file says what to train, or what problem arrays are of."""
    name = rng.choice(("config.yaml", "waves.yaml"))
    kit.copy(folder, name)
    what, _ = _damage(rng, folder / name)
    train = f"train config.yaml --data data --out r {TRAIN}"
    return Attack(what, (train if name == "config.yaml" else f"convert frames.npy {CONVERT}").split())


def run_folder(rng: Random, kit: Kit, folder: Path) -> Attack:
    """A run of which a part is damaged, missing or somebody else's is used in every way."""
    name = rng.choice(("run", "half"))
    kit.copy(folder, name)
    run = folder / name
    file = rng.choice(sorted(run.rglob("*")))
    command, check = rng.choice(
        [
            (f"evaluate {name} {EVALUATE}", same_scores(kit, run)),
            (f"report {name} --out page", anything),
            (f"rollout {name} --input frames.npy {PREDICT}", same_prediction(kit, folder)),
            (f"inspect {name} --samples 1 --json", anything),
            (f"train --resume --out {name} {TRAIN}", same_weights(kit, run)),
            (f"train config.yaml --data data --overwrite --out {name} {TRAIN}", same_weights(kit, run)),
        ]
    )
    return Attack(f"{file.relative_to(folder)}: {_damage(rng, file)[0]}", command.split(), check)


COMMAND_LINES = (
    "list",
    f"convert frames.npy {CONVERT}",
    "convert bench.h5 --out c --split valid --trajectories 1:2 --set frame_dt=0.2",
    "convert frames.npz --problem waves.yaml --field u=u --resolution 4 --out c --json",
    "generate kolmogorov_flow --preset tiny --resolution 16 --simulation-resolution 32 --trajectories 1 --split test "
    "--seed 3 --out g --set num_frames=2 --set warmup=0 --batch-size 1 --dtype float32 --device cpu",
    f"train config.yaml --data data --out r {TRAIN} --set training.updates=2 --set model.dim=8 --device cpu "
    "--precision 32-true --strategy auto --devices 1",
    f"train --resume --out half {TRAIN} --set training.keep_last=2",
    f"evaluate run {EVALUATE} --out e --split test --frames 2 --batch-size 1",
    "rollout bundle --input frames.npy --frames 2 --out p.npy --start 3 --json",
    "rollout run --input frames.npz --field u=u --layout ntxy --frames 1 --out p.npz",
    "inspect bundle --parameters",
    "inspect run --samples 1 --out i --json",
    "inspect --recipe kolmogorov --parameters --set model.name=fno",
    "report run --out page --title Title",
    "reproduce --list",
)
ASSIGNMENTS = ("model.dim", "model.depth", "training.learning_rate", "training.batch_size", "data.path", "frame_dt")
OPTIONS = ("--json", "--overwrite", "--hlep", "--", "-x", "--out", "--debug=1", "--help", "--resume")
BROKEN = ("[", "{a: [", "*a", "!!python/name:os.system", "[" * 3000, "a: b: c", "\t", "'")


def command_line(rng: Random, kit: Kit, folder: Path) -> Attack:
    """A command line with some words changed, left out, doubled or added."""
    kit.copy(folder, *(item.name for item in kit.folder.iterdir()))
    words = rng.choice(COMMAND_LINES).split()
    for _ in range(rng.choice((1, 1, 2, 3))):
        kind = rng.choice(
            [*["number"] * 4, *["value"] * 2, "replace", "remove", "double", "option", "set", "swap", "cut"]
        )
        wanted = {"number": str.isdecimal, "value": lambda word: "=" in word}.get(kind, bool)
        places = [index for index, word in enumerate(words) if wanted(word)]
        index = rng.choice(places) if places else 0
        if kind == "number" and places:
            words[index] = str(rng.choice([number for number in mutators.NUMBERS if isinstance(number, int)]))
        elif kind == "value" and places:
            value = rng.choice([mutators.odd_text(rng), rng.choice(BROKEN)])
            words[index] = words[index].partition("=")[0] + "=" + value
        elif kind == "replace":
            words[index] = mutators.odd_text(rng)
        elif kind == "remove":
            words[index : index + 1] = []
        elif kind == "double":
            words.insert(index, words[index])
        elif kind == "option":
            words.append(rng.choice(OPTIONS))
        elif kind == "set" and "--set" in words:
            words += ["--set", f"{rng.choice(ASSIGNMENTS)}={mutators.odd_text(rng)}"]
        elif kind == "swap":
            other = rng.randrange(len(words))
            words[index], words[other] = words[other], words[index]
        elif kind == "cut":
            words[index] = words[index][: rng.randrange(max(1, len(words[index])))]
        words = words or ["--help"]
    return Attack("words", words)


DOORS: dict[str, Door] = {
    "bundle": bundle,
    "checkpoint": checkpoint,
    "dataset": dataset,
    "array": array,
    "configuration": configuration,
    "run folder": run_folder,
    "command line": command_line,
}


def _damage(rng: Random, path: Path) -> tuple[str, bool]:
    """Damage a file by its structure, its bytes or what it is; whether it was by its structure."""
    draw = rng.random()
    mutate = _mutator(path)
    if draw < 0.1 or path.is_dir():
        return f"{path.name}: {mutators.mutate_entry(rng, path)}", False
    if draw < 0.4 or mutate is None:
        return f"{path.name}: {mutators.mutate_bytes(rng, path)}", False
    return f"{path.name}: {mutate(rng, path)}", True


def _mutator(path: Path) -> Callable[[Random, Path], str] | None:
    """The mutator that knows the structure of a file, by its name and how it begins."""
    if path.suffix == ".mat":
        return array_mutators.mutate_hdf5 if h5py.is_hdf5(path) else array_mutators.mutate_mat
    return {
        ".json": mutators.mutate_json,
        ".jsonl": mutators.mutate_json_lines,
        ".yaml": mutators.mutate_yaml,
        ".safetensors": array_mutators.mutate_safetensors,
        ".npy": array_mutators.mutate_npy,
        ".npz": array_mutators.mutate_npz,
        ".h5": array_mutators.mutate_hdf5,
        ".hdf5": array_mutators.mutate_hdf5,
    }.get(path.suffix)


def _sign_bundle(folder: Path) -> bool:
    """Make the checksums right, as one could who writes such files on purpose; whether there is anything to sign."""
    file = folder / "bundle.json"
    try:
        description = json.loads(file.read_text(encoding="utf-8"))
        description["sha256"] = _checksum(folder / "model.safetensors")
        description[CHECKSUM] = description_checksum(description)
    except (ValueError, TypeError, RecursionError):
        return False
    file.write_bytes(mutators.json_text(description))
    return True


def _sign_checkpoint(folder: Path) -> bool:
    file = folder / "checkpoint.json"
    try:
        description = json.loads(file.read_text(encoding="utf-8"))
        for name in ("tensors.safetensors", "metrics.jsonl"):
            description["sha256"][name] = _checksum(folder / name)
        description.pop("checksum")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return False
    text = json.dumps(description, sort_keys=True).encode()
    description["checksum"] = hashlib.sha256(text).hexdigest()
    file.write_bytes(mutators.json_text(description))
    return True


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
