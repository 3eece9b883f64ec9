"""Filling the files of `entries` within a given time: data made once, run after run, each result kept at once.

The machine may be lent for minutes and start bare, so nothing here relies on what an earlier call left behind but
the result files themselves and, for runs in segments, the packed state of `segments`.
"""

from __future__ import annotations

import gc
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from factformer import recipes
from factformer.bundle import load, save_bundle
from factformer.data.agreement import changed_problem
from factformer.data.generate.simulated import Splits, simulate_splits
from factformer.errors import UserError
from factformer.evaluation.accuracy import evaluate
from factformer.evaluation.provenance import provenance, write_json
from factformer.evaluation.timing import resolve_device
from factformer.pdes import Preset
from factformer.studies.cells import Scale, Training
from factformer.studies.scales import DATA_SEED, experiment_of, size_of
from factformer.training import Machine
from factformer.training.experiment.definition import Experiment
from factformer.training.loop.outcome import Outcome
from factformer.training.loop.signals import by_signal
from factformer.training.loop.train import train
from factformer.training.runfolder.reporting import Reporter
from lab.campaign import segments
from lab.campaign.entries import DATA, Data, Entry
from lab.campaign.record import beyond, headline, log_lines, short, train_command

Say = Callable[[str], None]
STORAGE = {"float32": torch.float32, "bfloat16": torch.bfloat16}
BOOKKEEPING = (
    "training.log_every=100",
    "training.validate_every=1000000",
    "training.checkpoint_every=5000",
    "training.keep_last=1",
    "training.on_divergence=halve",
)
SECONDS_AROUND = 30.0
"""What a run is expected to take beyond its training until one is known: compilation, evaluation, start."""
SECONDS_TO_PACK = 20.0
SHORTEST_SEGMENT = 60.0
WARM_UP_UPDATES = 16
TIMES_AS_FAR = 4
"""Roll-outs of so many times the frames that the problem asks for show whether a surrogate stays with the flow."""


@dataclass(frozen=True)
class Status:
    """How an entry ended: ``done``, ``found``, ``stopped``, ``no time`` or ``failed``."""

    entry: Entry
    word: str
    detail: str = ""
    seconds: float = 0.0


class Messages(Reporter):
    """Says what is worth a line of its own, such as a run that diverged."""

    def __init__(self, say: Say) -> None:
        self.say = say

    def message(self, text: str) -> None:
        self.say(text)


class Campaign:
    """Runs entries until the time is over."""

    def __init__(
        self,
        results: str | Path,
        work: str | Path,
        *,
        seconds: float | None = None,
        scale: Scale = "paper",
        device: str | None = None,
        data: Mapping[str, Data] | None = None,
        assignments: Sequence[str] = (),
        minutes: float | None = None,
        state: str | Path | None = None,
        pack: str | Path | None = None,
        fresh: bool = False,
        beside: str = "",
        say: Say = print,
    ) -> None:
        """``minutes`` replaces those of the entries (to try something out); ``state`` holds segments that were brought
        here, ``pack`` is where what must leave this machine is collected; ``fresh`` runs what is there again;
        ``beside`` says what else uses the device meanwhile, for whoever reads the number of updates."""
        self.results, self.work = Path(results), Path(work)
        self.began = time.monotonic()
        self.deadline = None if seconds is None else self.began + seconds
        self.scale: Scale = scale
        self.device = resolve_device(device)
        self.data = {**DATA, **(data or {})}
        self.assignments, self.minutes = tuple(assignments), minutes
        self.state = None if state is None else Path(state)
        self.pack = None if pack is None else Path(pack)
        self.say = say
        self.fresh, self.beside = fresh, beside
        self.around: dict[str, float] = {}
        self.warm: set[tuple[Any, ...]] = set()
        self.made: tuple[str, dict[int, Splits]] | None = None
        self.signalled = ""

    def run(self, entries: Sequence[Entry]) -> list[Status]:
        """Every entry in turn; a failure is a status and the others go on."""
        statuses: list[Status] = []
        pending = [entry for entry in entries if self.fresh or not (self.results / entry.path).is_file()]
        for entry in entries:
            if entry not in pending:
                statuses.append(Status(entry, "found"))
                continue
            began = time.monotonic()
            try:
                status = self.fill(entry, pending)
            except Exception as error:  # whatever goes wrong in one run must not cost the others
                if not isinstance(error, (UserError, RuntimeError, OSError, ValueError)):
                    self.say(traceback.format_exc())
                status = Status(entry, "failed", (str(error).strip().splitlines() or [type(error).__name__])[0])
            status = replace(status, seconds=time.monotonic() - began)
            statuses.append(status)
            self.say(f"[{time.monotonic() - self.began:5.0f} s] {entry.path}: {status.word} {status.detail}".rstrip())
            gc.collect()  # recorded steps hold memory until they are collected
            if self.signalled:
                self.say(f"{self.signalled}: nothing more is begun")
                break
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
                if not self.device_answers():
                    self.say("the device no longer answers: nothing more is begun in this process")
                    break
        return statuses

    def device_answers(self) -> bool:
        """Whether a failed kernel has not taken the device with it."""
        try:
            torch.ones(1, device=self.device).sum().item()
        except RuntimeError:
            return False
        return True

    def left(self) -> float:
        return float("inf") if self.deadline is None else self.deadline - time.monotonic()

    def fill(self, entry: Entry, pending: Sequence[Entry]) -> Status:
        """Data, training, evaluation and the file of one entry."""
        minutes = self.minutes or entry.minutes
        around = self.around.get(entry.run.recipe, SECONDS_AROUND)
        needed = SHORTEST_SEGMENT if entry.in_segments else 60 * minutes + around
        if self.left() < needed:
            return Status(entry, "no time", f"{needed:.0f} s needed, {self.left():.0f} s left")
        splits = self.splits(entry, pending)
        if self.left() < needed:
            return Status(entry, "no time", f"{needed:.0f} s needed, {self.left():.0f} s left after the data")
        began = time.monotonic()
        experiment = self.experiment(entry, splits, minutes)
        size = self.preset(entry.run).resolution
        folder = self.work / "runs" / f"{entry.folder}-{entry.name}"
        if entry.in_segments and self.state is not None and not folder.exists():
            segments.unpack(self.state, folder.name, folder)
        self.warm_up(experiment, splits[size])
        if self.signalled:
            return Status(entry, "stopped", self.signalled)
        outcome = self.listened(self.train(experiment, splits[size], folder, entry))
        if outcome.surrogate is None:
            if self.pack is not None:
                segments.pack(folder, self.pack, folder.name)
            return Status(entry, "stopped", f"after update {outcome.update} ({outcome.reason})")
        result = self.evaluated(entry, experiment, outcome, splits, folder)
        result["wall_seconds"] = round(time.monotonic() - began, 3)
        write_json(self.results / entry.path, result)
        self.collect(entry, folder)
        if not entry.in_segments:
            self.around[entry.run.recipe] = max(time.monotonic() - began - 60 * minutes, 5.0) + 5.0
        return Status(entry, "done", headline(result))

    def train(self, experiment: Experiment, splits: Splits, folder: Path, entry: Entry) -> Outcome:
        reserve = SECONDS_TO_PACK if entry.in_segments else 0.0
        limit = None if self.deadline is None else max(self.left() - reserve, 1.0) / 60
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")  # the products of 32-bit runs use the matrix units
        try:
            return train(
                experiment,
                splits["train"],
                folder=folder,
                machine=self.machine,
                resume=True,
                max_minutes=limit,
                command=train_command(experiment),
                reporter=Messages(self.say),
            )
        finally:
            torch.set_float32_matmul_precision(before)

    def warm_up(self, experiment: Experiment, splits: Splits) -> None:
        """A few updates of every kind on a GPU, thrown away: kernels are compiled outside of the time that counts."""
        training, protocol = experiment.training, experiment.protocol
        key = (
            experiment.model.fingerprint(),
            splits["train"].fingerprint,
            training.batch_size,
            training.precision,
            protocol.name,
            protocol.marching_steps,
            protocol.calls,
        )
        if self.device.type != "cuda" or key in self.warm:
            return
        self.warm.add(key)
        changes = [
            "training.budget_minutes=null",
            f"training.updates={WARM_UP_UPDATES}",
            "protocol.curriculum=0.5",
            "protocol.pushforward_from=0.5",
            "protocol.pushforward_every=2",
            "protocol.calls_from=0.75",
        ]
        with tempfile.TemporaryDirectory() as folder:
            run = Path(folder) / "run"
            self.listened(train(experiment.override(changes), splits["train"], folder=run, machine=self.machine))

    def listened(self, outcome: Outcome) -> Outcome:
        """A run that a signal ended takes the campaign with it."""
        if by_signal(outcome.reason):
            self.signalled = outcome.reason
        return outcome

    @property
    def machine(self) -> Machine:
        return Machine("cuda" if self.device.type == "cuda" else "cpu")

    def splits(self, entry: Entry, pending: Sequence[Entry]) -> dict[int, Splits]:
        """The data of an entry's recipe at every resolution that is still to come; one recipe at a time."""
        recipe = entry.run.recipe
        if self.made is not None and self.made[0] == recipe:
            return self.made[1]
        self.made = None
        gc.collect()
        sizes = {
            size
            for other in pending
            if other.run.recipe == recipe
            for size in (self.preset(other.run).resolution, *self.others(other))
        }
        preset, wanted = self.preset(entry.run), self.data[recipe]
        held_out = sorted({other.split for other in pending if other.run.recipe == recipe})
        counts = {"train": wanted.train, **dict.fromkeys(held_out, wanted.test)}
        began = time.monotonic()
        made = simulate_splits(
            recipes.build(recipe).problem,
            preset,
            counts,
            sorted(sizes),
            seed=DATA_SEED,
            device=self.device,
            storage=STORAGE[wanted.storage],
            batch_size=wanted.batch_size,
        )
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        number = " + ".join(map(str, counts.values()))
        self.say(
            f"[{time.monotonic() - self.began:5.0f} s] {recipe}: {number} solutions at "
            f"{', '.join(map(str, sorted(sizes)))} in {time.monotonic() - began:.1f} s"
        )
        scope = size_of(entry.run, self.scale)
        if scope.num_context_frames is not None:
            changes = {"num_context_frames": scope.num_context_frames, "horizon": scope.num_frames}
            for split in (split for splits in made.values() for split in splits.values()):
                split.problem = changed_problem(split.problem, **changes)
        self.made = (recipe, made)
        return made

    def preset(self, run: Training) -> Preset:
        run = run if self.scale == "paper" else replace(run, resolution=None)
        return size_of(run, self.scale).preset

    def others(self, entry: Entry) -> tuple[int, ...]:
        """Further resolutions to evaluate on; a tiny grid has one half as fine."""
        if self.scale == "paper" or not entry.also:
            return entry.also
        return (1 + (self.preset(entry.run).resolution - 1) // 2,)

    def experiment(self, entry: Entry, splits: Mapping[int, Splits], minutes: float) -> Experiment:
        run = entry.run if self.scale == "paper" else replace(entry.run, resolution=None)
        settings = (*BOOKKEEPING, f"training.budget_minutes={minutes:g}", "data.residence=device", *self.assignments)
        train_split = splits[self.preset(entry.run).resolution]["train"]
        name = f"data/{entry.run.recipe}-{train_split.problem.grid.shape[0]}"
        experiment = experiment_of(replace(run, settings=()), self.scale, name, minutes=None, assignments=settings)
        return experiment.override(run.settings)

    def evaluated(
        self, entry: Entry, experiment: Experiment, outcome: Outcome, splits: Mapping[int, Splits], folder: Path
    ) -> dict[str, Any]:
        """The content of the entry's file."""
        assert outcome.surrogate is not None
        size, scope = self.preset(entry.run).resolution, size_of(entry.run, self.scale)
        options: dict[str, Any] = {"num_frames": scope.num_frames, "num_starts": scope.num_starts}
        options["device"] = self.device
        # In three dimensions a roll-out takes seconds: their time is measured elsewhere, at no cost to these runs.
        held_out = splits[size][entry.split]
        timing = held_out.problem.grid.num_axes < 3
        result = evaluate(outcome.surrogate, held_out, timing=timing, **options).to_dict()
        seed = experiment.training.seed
        result |= provenance(seed=seed, device=self.device)
        own = "".join(f" --set {assignment}" for assignment in self.assignments)
        result["command"] = f"python -m lab.campaign run {entry.group}/{entry.name}{own}"
        known = outcome.surrogate.provenance
        result["entry"] = {
            "group": entry.group,
            "title": entry.title,
            "minutes": experiment.training.budget_minutes,
            "protocol": experiment.protocol.name,
            "bundle": entry.bundle,
        }
        kept = ("command", "updates", "training_seconds", "rollbacks", "protocol", "training", "dataset", "seed")
        result["training"] = {key: known[key] for key in kept}
        result["training"]["float32_products"] = "TF32"
        if self.beside:
            result["training"]["beside"] = self.beside
        result["data"] = self.data_record(entry, splits[size])
        result["config"] = outcome.surrogate.config.model_dump(mode="json")
        result["metrics"] = log_lines(folder / "metrics.jsonl")
        far = TIMES_AS_FAR * result["num_frames"]
        if held_out.problem.num_context_frames and held_out.problem.num_context_frames + far <= held_out.num_frames:
            once = {**options, "num_frames": far, "num_starts": 1}
            result["beyond"] = beyond(evaluate(outcome.surrogate, held_out, timing=False, **once).to_dict())
        for other in self.others(entry):
            found = evaluate(outcome.surrogate, splits[other][entry.split], timing=False, **options).to_dict()
            result.setdefault("transfer", {})[str(other)] = short(found)
        if entry.bundle:
            path = save_bundle(outcome.surrogate, folder / "zoo" / entry.bundle, storage=torch.float16, overwrite=True)
            stored = evaluate(load(path), held_out, timing=False, **options).to_dict()
            result["stored_float16"] = short(stored)
        outcome.surrogate.cpu()
        return result

    def data_record(self, entry: Entry, splits: Splits) -> dict[str, Any]:
        train_split, held_out = splits["train"], splits[entry.split]
        problem = train_split.problem
        size = problem.grid.shape[0]
        generate = f"factformer generate {problem.name} --preset paper --resolution {size}"
        out = f"--out data/{entry.run.recipe}-{size} --seed {DATA_SEED} --device cuda"
        return {
            "command": f"{generate} --split train --trajectories {train_split.num_trajectories} {out}; "
            f"{generate} --split {entry.split} --trajectories {held_out.num_trajectories} {out}",
            "train": train_split.num_trajectories,
            entry.split: held_out.num_trajectories,
            "frames": train_split.num_frames,
            "storage": self.data[entry.run.recipe].storage,
            "fingerprints": {"train": train_split.fingerprint, entry.split: held_out.fingerprint},
            **train_split.provenance,
        }

    def collect(self, entry: Entry, folder: Path) -> None:
        """Everything so far as archives in ``pack``: a call that is cut short loses only what it was at."""
        if self.pack is None:
            return
        segments.add_to_archive(self.pack / "results.tar", {f"results/{entry.path}": self.results / entry.path})
        for bundle in sorted((folder / "zoo").glob("*")):
            files = {f"zoo/{bundle.name}/{file.name}": file for file in sorted(bundle.iterdir())}
            segments.add_to_archive(self.pack / f"zoo-{bundle.name}.tar", files, fresh=True)


def summary(statuses: Sequence[Status]) -> str:
    """One line per entry, and what is left."""
    lines = [f"{status.word:8s} {status.seconds:6.0f} s  {status.entry.path}  {status.detail}" for status in statuses]
    counts = {word: sum(status.word == word for status in statuses) for word in ("done", "found", "failed")}
    return "\n".join([*lines, ", ".join(f"{count} {word}" for word, count in counts.items())])
