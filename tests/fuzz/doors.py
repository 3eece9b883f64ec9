"""The doors through which a stranger's files come in: what is damaged, which command meets it, what must hold then."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import artefacts
import h5py
import mutators
import numpy as np
from arena import RAW, Arena, Outcome
from artefacts import CONVERT, EVALUATE, TRAIN, Kit

MEGABYTES = 1000
LINE = 1000
PROGRESS = re.compile(r"[^:]*: \d+/\d+ .*|training in .*|update .*")


@dataclass(frozen=True)
class Attack:
    """Damaged files in a folder, the command that meets them, and what it must not come to: None, or why it failed."""

    what: str
    words: Sequence[str]
    check: Callable[[Arena], str | None] = lambda _: None


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
        failure = Failure(door, index, made.what, made.words, reason, message) if reason else None
        return outcome, failure
    finally:
        shutil.rmtree(folder)


def judge(outcome: Outcome) -> str | None:
    """What no command may do, whatever it is given; None if it did well."""
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
        return f"done, but complains of {complaints[-1].split(':')[-2:][0].strip()[:40]}"
    if re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", outcome.err + outcome.out):
        return "prints control characters"
    return None


def bundle(rng: Random, kit: Kit, folder: Path) -> Attack:
    """A damaged bundle is rolled out or evaluated."""
    kit.copy(folder, "bundle")
    file = folder / "bundle" / rng.choice(("bundle.json", "model.safetensors"))
    mutate = mutators.mutate_json if file.suffix == ".json" else mutators.mutate_safetensors
    what, structured = _damage(rng, file, mutate)
    signed = structured and rng.random() < 0.5 and _sign_bundle(folder / "bundle")
    if rng.random() < 0.7:
        words = ("rollout", "bundle", "--input", "frames.npy", "--frames", "2", "--out", "p.npy")
        return Attack(what, words, _finite_prediction(folder) if signed else _same_prediction(kit, folder))
    words = ("evaluate", "bundle", "--data", "data", "--out", "e", *EVALUATE)
    return Attack(what, words, (lambda _: None) if signed else _same_scores(kit, folder / "e"))


def checkpoint(rng: Random, kit: Kit, folder: Path) -> Attack:
    """A run is resumed from a damaged checkpoint."""
    kit.copy(folder, "half")
    place = folder / "half" / "checkpoints" / "update-00000002"
    file = place / rng.choice(("checkpoint.json", "tensors.safetensors", "metrics.jsonl"))
    mutate = {
        ".json": mutators.mutate_json,
        ".jsonl": mutators.mutate_json_lines,
        ".safetensors": mutators.mutate_safetensors,
    }[file.suffix]
    what, structured = _damage(rng, file, mutate)
    signed = structured and rng.random() < 0.5 and _sign_checkpoint(place)
    words = ("train", "--resume", "--out", "half", *TRAIN)
    return Attack(what, words, (lambda _: None) if signed else _same_weights(kit, folder / "half"))


def dataset(rng: Random, kit: Kit, folder: Path) -> Attack:
    """A damaged file of our data is evaluated on, trained on, rolled out from or converted."""
    kit.copy(folder, "data")
    command = rng.choice(("evaluate", "train", "rollout", "convert"))
    file = folder / "data" / ("test.hdf5" if command != "train" else rng.choice(("train.hdf5", "valid.hdf5")))
    what, _ = _damage(rng, file, mutators.mutate_hdf5)
    if command == "evaluate":
        words = ("evaluate", "run", "--data", "data", "--out", "e", *EVALUATE)
        return Attack(what, words, _same_scores(kit, folder / "e"))
    if command == "train":
        words = ("train", "config.yaml", "--data", "data", "--out", "r", *TRAIN)
        return Attack(what, words, _same_weights(kit, folder / "r"))
    if command == "rollout":
        words = ("rollout", "bundle", "--input", "data/test.hdf5", "--start", "9", "--frames", "2", "--out", "p.npy")
        return Attack(what, words, _same_prediction(kit, folder))
    return Attack(what, ("convert", "data/test.hdf5", "--out", "converted/test.hdf5"), _same_values(kit, folder, None))


def array(rng: Random, kit: Kit, folder: Path) -> Attack:
    """A damaged file of arrays is converted or rolled out from."""
    name = rng.choice(artefacts.ARRAYS)
    kit.copy(folder, name)
    file = folder / name
    mutate = {
        "frames.npy": mutators.mutate_npy,
        "frames.npz": mutators.mutate_npz,
        "frames.mat": mutators.mutate_mat,
    }.get(name, mutators.mutate_hdf5)
    what, _ = _damage(rng, file, mutate)
    if rng.random() < 0.6:
        return Attack(f"{name}: {what}", ("convert", name, *CONVERT), _same_values(kit, folder, file))
    words = ("rollout", "bundle", "--input", name, "--frames", "2", "--out", "p.npy")
    return Attack(f"{name}: {what}", words, _finite_prediction(folder))


def configuration(rng: Random, kit: Kit, folder: Path) -> Attack:
    """A damaged YAML file says what to train, or what problem arrays are of."""
    name = rng.choice(("config.yaml", "waves.yaml"))
    kit.copy(folder, name)
    what, _ = _damage(rng, folder / name, mutators.mutate_yaml)
    if name == "waves.yaml":
        return Attack(what, ("convert", "frames.npy", *CONVERT))
    return Attack(what, ("train", "config.yaml", "--data", "data", "--out", "r", *TRAIN))


def run_folder(rng: Random, kit: Kit, folder: Path) -> Attack:
    """A run of which a part is damaged, missing or of somebody else is used in every way."""
    name = rng.choice(("run", "half"))
    kit.copy(folder, name)
    run = folder / name
    file = rng.choice(sorted(path for path in run.rglob("*")))
    mutate = {
        ".json": mutators.mutate_json,
        ".jsonl": mutators.mutate_json_lines,
        ".npz": mutators.mutate_npz,
        ".safetensors": mutators.mutate_safetensors,
        ".yaml": mutators.mutate_yaml,
    }.get(file.suffix)
    what = f"{file.relative_to(run)}: {_damage(rng, file, mutate)[0]}"
    command = rng.choice(("evaluate", "report", "rollout", "resume", "overwrite", "inspect"))
    if command == "evaluate":
        return Attack(what, ("evaluate", name, *EVALUATE), _same_scores(kit, run))
    if command == "report":
        return Attack(what, ("report", name, "--out", "page"))
    if command == "rollout":
        words = ("rollout", name, "--input", "frames.npy", "--frames", "2", "--out", "p.npy")
        return Attack(what, words, _same_prediction(kit, folder))
    if command == "inspect":
        return Attack(what, ("inspect", name, "--samples", "1", "--json"))
    again = ("--resume",) if command == "resume" else ("config.yaml", "--data", "data", "--overwrite")
    return Attack(what, ("train", *again, "--out", name, *TRAIN), _same_weights(kit, run))


COMMAND_LINES: tuple[tuple[str, ...], ...] = (
    ("list",),
    ("convert", "frames.npy", "--problem", "waves.yaml", "--layout", "ntxy", "--out", "c/test.hdf5"),
    ("convert", "bench.h5", "--out", "c", "--split", "valid", "--trajectories", "1:2", "--set", "frame_dt=0.2"),
    ("convert", "frames.npz", "--problem", "waves.yaml", "--field", "u=u", "--resolution", "4", "--out", "c", "--json"),
    ("generate", "kolmogorov_flow", "--preset", "tiny", "--resolution", "16", "--simulation-resolution", "32")
    + ("--trajectories", "1", "--split", "test", "--seed", "3", "--out", "g", "--set", "num_frames=2")
    + ("--set", "warmup=0", "--batch-size", "1", "--dtype", "float32", "--device", "cpu"),
    ("train", "config.yaml", "--data", "data", "--out", "r", *TRAIN, "--set", "training.updates=2")
    + ("--set", "model.dim=8", "--device", "cpu", "--precision", "32-true", "--strategy", "auto", "--devices", "1"),
    ("train", "--resume", "--out", "half", *TRAIN),
    ("evaluate", "run", *EVALUATE, "--out", "e", "--split", "test", "--frames", "2", "--batch-size", "1"),
    ("rollout", "bundle", "--input", "frames.npy", "--frames", "2", "--out", "p.npy", "--start", "3", "--json"),
    (
        "rollout",
        "run",
        "--input",
        "frames.npz",
        "--field",
        "u=u",
        "--layout",
        "ntxy",
        "--frames",
        "1",
        "--out",
        "p.npz",
    ),
    ("inspect", "bundle", "--parameters"),
    ("inspect", "run", "--samples", "1", "--out", "i", "--json"),
    ("inspect", "--recipe", "kolmogorov", "--parameters", "--set", "model.name=fno"),
    ("report", "run", "--out", "page", "--title", "A title"),
    ("reproduce", "--list"),
)
ASSIGNMENTS = ("model.dim", "model.depth", "training.learning_rate", "training.batch_size", "data.path", "frame_dt")


def command_line(rng: Random, kit: Kit, folder: Path) -> Attack:
    """A command line with some words changed, left out, doubled or added."""
    kit.copy(folder, *(item.name for item in kit.folder.iterdir()))
    words = list(rng.choice(COMMAND_LINES))
    for _ in range(rng.choice((1, 1, 2, 3))):
        index = rng.randrange(len(words))
        kind = rng.choice(
            [*["number"] * 4, *["value"] * 2, "replace", "remove", "double", "option", "set", "swap", "cut"]
        )
        if kind == "replace" and index:
            words[index] = mutators.odd_text(rng)
        elif kind == "number" and any(word.isdecimal() for word in words):
            index = rng.choice([index for index, word in enumerate(words) if word.isdecimal()])
            words[index] = str(rng.choice([number for number in mutators.NUMBERS if isinstance(number, int)]))
        elif kind == "value" and any("=" in word for word in words):
            index = rng.choice([index for index, word in enumerate(words) if "=" in word])
            words[index] = words[index].partition("=")[0] + "=" + mutators.odd_text(rng)
        elif kind == "remove":
            words[index : index + 1] = [] if len(words) > 1 else words
        elif kind == "double":
            words.insert(index, words[index])
        elif kind == "option":
            words.append(rng.choice(("--json", "--overwrite", "--hlep", "--", "-x", "--out", "--debug=1", "--help")))
        elif kind == "set" and "--set" in words:
            value = rng.choice([mutators.odd_text(rng), "[", "{a: [", "*a", "!!python/name:os.system", "[" * 3000])
            words += ["--set", f"{rng.choice(ASSIGNMENTS)}={value}"]
        elif kind == "swap":
            other = rng.randrange(len(words))
            words[index], words[other] = words[other], words[index]
        elif words[index] and index:
            words[index] = words[index][: rng.randrange(len(words[index]))]
    return Attack("words", tuple(words))


DOORS: dict[str, Door] = {
    "bundle": bundle,
    "checkpoint": checkpoint,
    "dataset": dataset,
    "array": array,
    "configuration": configuration,
    "run folder": run_folder,
    "command line": command_line,
}


def _damage(rng: Random, path: Path, mutate: Callable[[Random, Path], str] | None) -> tuple[str, bool]:
    """Damage a file by its structure, its bytes or what it is; whether it was by its structure."""
    draw = rng.random()
    if draw < 0.1 or path.is_dir():
        return f"{path.name}: {mutators.mutate_entry(rng, path)}", False
    if draw < 0.4 or mutate is None:
        return f"{path.name}: {mutators.mutate_bytes(rng, path)}", False
    return f"{path.name}: {mutate(rng, path)}", True


def _sign_bundle(folder: Path) -> bool:
    """Make the checksums right again, as a stranger could who writes such files; whether there is anything to sign."""
    file = folder / "bundle.json"
    try:
        description = json.loads(file.read_text(encoding="utf-8"))
        description["sha256"] = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    except (ValueError, TypeError, RecursionError):
        return False
    file.write_bytes(mutators.json_text(description))
    return True


def _sign_checkpoint(folder: Path) -> bool:
    file = folder / "checkpoint.json"
    try:
        description = json.loads(file.read_text(encoding="utf-8"))
        for name in ("tensors.safetensors", "metrics.jsonl"):
            description["sha256"][name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        description.pop("checksum")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return False
    text = json.dumps(description, sort_keys=True).encode()
    description["checksum"] = hashlib.sha256(text).hexdigest()
    file.write_bytes(mutators.json_text(description))
    return True


def _same_prediction(kit: Kit, folder: Path) -> Callable[[Arena], str | None]:
    return lambda _: None if (folder / "p.npy").read_bytes() == kit.prediction else "accepted with other predictions"


def _finite_prediction(folder: Path) -> Callable[[Arena], str | None]:
    return lambda _: None if np.isfinite(np.load(folder / "p.npy")).all() else "accepted, predictions not finite"


def _same_scores(kit: Kit, folder: Path) -> Callable[[Arena], str | None]:
    def check(_: Arena) -> str | None:
        found = json.loads((folder / "evaluation.json").read_text(encoding="utf-8"))["fields"]
        return None if found == kit.scores else "accepted with other errors"

    return check


def _same_weights(kit: Kit, run: Path) -> Callable[[Arena], str | None]:
    file = run / "bundle" / "model.safetensors"
    return lambda _: None if file.read_bytes() == kit.weights else "accepted with other weights"


def _same_values(kit: Kit, folder: Path, source: Path | None) -> Callable[[Arena], str | None]:
    """The undamaged values were stored, or else those that the ``source``'s own library reads in it."""

    def check(arena: Arena) -> str | None:
        with h5py.File(folder / "converted" / "test.hdf5") as file:
            stored, problem = file["t0_fields/u"][...], json.loads(file.attrs["problem"])
        if source is None and problem != kit.problem:
            return "accepted with another problem"
        if np.array_equal(stored, kit.values):
            return None
        if source is not None:
            arena.run([source.name, "plain.npz"], folder, task="read")
            if any(_holds(values, stored) for values in _arrays(folder / "plain.npz")):
                return None
        return "accepted with other values"

    return check


def _arrays(path: Path) -> list[np.ndarray[Any, Any]]:
    if not path.exists():
        return []
    with np.load(path) as archive:
        return list(archive.values())


def _holds(values: np.ndarray[Any, Any], stored: np.ndarray[Any, Any]) -> bool:
    """Whether ``stored`` is an array, or that of MATLAB, in single precision."""
    with np.errstate(over="ignore"):
        single = values.astype("f4")
    return any(np.array_equal(each.ravel(), stored.ravel()) for each in (single, single.T))
