"""Filling the files of `entries` within a given time: data made once, run after run, each result kept at once.

The machine may be there for minutes only and start bare. So nothing here relies on what an earlier call left behind,
except the result files and, for runs in segments, the packed state of `segments`.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from factformer._support.run_names import METRICS
from factformer.bundle import load, save_bundle
from factformer.data.generate.simulated import Splits
from factformer.data.windows import span
from factformer.evaluation.accuracy import evaluate
from factformer.evaluation.baselines import tf32_products
from factformer.evaluation.provenance import provenance, write_json
from factformer.studies.cells import Scale
from factformer.studies.runner import Ended, Runner, Say, Stopped
from factformer.studies.scales import experiment_of
from factformer.surrogate import Surrogate
from factformer.training.experiment.definition import Experiment
from factformer.training.runfolder.reporting import Reporter
from lab.campaign import segments
from lab.campaign.datasets import DATA, Data
from lab.campaign.entries import Entry
from lab.campaign.record import (
    beyond,
    frames_on,
    generate_command,
    headline,
    log_lines,
    short,
    train_command,
    with_curve,
)
from lab.campaign.solved import Solved

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
        """``minutes`` replaces those of the entries, to try something out. ``state`` holds segments brought here from
        another machine; ``pack`` collects what must leave this one. ``fresh`` repeats runs that have a result.
        ``beside`` is recorded: what else used the device, which explains a lower number of updates."""
        self.results, self.work = Path(results), Path(work)
        # On a machine that is there for minutes no failure of one run, of whatever kind, may cost the others.
        self.runner = Runner(seconds=seconds, device=device, say=say, failures=(Exception,))
        self.scale: Scale = scale
        self.data = {**DATA, **(data or {})}
        self.assignments, self.minutes = tuple(assignments), minutes
        self.state = None if state is None else Path(state)
        self.pack = None if pack is None else Path(pack)
        self.say = say
        self.fresh, self.beside = fresh, beside
        self.around: dict[str, float] = {}
        self.warm: set[tuple[Any, ...]] = set()
        self.solved = Solved(self.data, scale, self.runner.device, self.tell)

    @property
    def device(self) -> torch.device:
        return self.runner.device

    def run(self, entries: Sequence[Entry]) -> list[Ended]:
        """Every entry in turn, until a signal arrives or the device is lost."""
        endings: list[Ended] = []
        pending = [entry for entry in entries if self.fresh or not (self.results / entry.path).is_file()]
        for entry in entries:
            if entry not in pending:
                endings.append(Ended("found", label=entry.path))
                continue
            began = time.monotonic()
            ended = self.runner.attempt(partial(self.fill, entry, pending), entry.path)
            endings.append(replace(ended, seconds=time.monotonic() - began))
            self.tell(f"{entry.path}: {ended.word} {ended.detail}".rstrip())
            gc.collect()  # recorded steps hold memory until they are collected
            if self.runner.stopped:
                self.say(f"{self.runner.stopped}: nothing more is begun")
                break
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
                if not self.device_answers():
                    self.say("the device no longer answers: nothing more is begun in this process")
                    break
        return endings

    def tell(self, text: str) -> None:
        self.say(f"[{time.monotonic() - self.runner.began:5.0f} s] {text}")

    def device_answers(self) -> bool:
        """Whether a failed kernel has not taken the device with it."""
        try:
            torch.ones(1, device=self.device).sum().item()
        except RuntimeError:
            return False
        return True

    def fill(self, entry: Entry, pending: Sequence[Entry]) -> Ended:
        """Data, training, evaluation and the file of one entry."""
        minutes = self.minutes or entry.minutes
        around = self.around.get(entry.data_name, SECONDS_AROUND)
        needed = SHORTEST_SEGMENT if entry.in_segments else 60 * minutes + around
        self.runner.check_time(needed)
        splits = self.solved.splits(entry, pending)
        self.runner.check_time(needed)  # the data took their time
        began = time.monotonic()
        experiment = self.experiment(entry, splits, minutes)
        size = self.solved.preset(entry).resolution
        splits = {**splits, size: self.solved.seen(splits[size], experiment)}
        folder = self.work / "runs" / f"{entry.folder}-{entry.name}"
        if entry.in_segments and self.state is not None and not folder.exists():
            segments.unpack(self.state, folder.name, folder)
        with tf32_products():
            self.warm_up(experiment, splits[size])
            surrogate = self.train(experiment, splits[size], folder, entry)
        result = self.evaluated(entry, experiment, surrogate, splits, folder)
        result["wall_seconds"] = round(time.monotonic() - began, 3)
        write_json(self.results / entry.path, result)
        self.collect(entry, folder)
        if not entry.in_segments:
            self.around[entry.data_name] = max(time.monotonic() - began - 60 * minutes, 5.0) + 5.0
        return Ended("done", headline(result), result, folder=str(folder), label=entry.path)

    def train(self, experiment: Experiment, splits: Splits, folder: Path, entry: Entry) -> Surrogate:
        """The trained surrogate; the state of a segment is packed where the run stops before its end."""
        try:
            return self.runner.train(
                experiment,
                splits["train"],
                None,
                folder,
                command=train_command(experiment),
                reporter=Messages(self.say),
                reserve=SECONDS_TO_PACK if entry.in_segments else 0.0,
            )
        except Stopped:
            if entry.in_segments and self.pack is not None:
                segments.pack(folder, self.pack, folder.name)
            raise

    def warm_up(self, experiment: Experiment, splits: Splits) -> None:
        """A few updates of every kind on a GPU, thrown away: kernels are compiled outside of the time that counts."""
        training, protocol = experiment.training, experiment.protocol
        key = (
            experiment.model.fingerprint(),
            splits["train"].fingerprint,
            training.batch_size,
            training.precision,
            protocol.name,
            getattr(protocol, "marching_steps", 1),
            getattr(protocol, "calls", 1),
            protocol.strides,
            experiment.data.num_context_frames,
        )
        if self.device.type != "cuda" or key in self.warm:
            return
        self.warm.add(key)
        changes = [
            "training.budget_minutes=null",
            f"training.updates={WARM_UP_UPDATES}",
        ]
        if protocol.name == "latent_marching":
            changes += [
                "protocol.curriculum=0.5",
                "protocol.pushforward_from=0.5",
                "protocol.pushforward_every=2",
                "protocol.calls_from=0.75",
            ]
        with tempfile.TemporaryDirectory() as folder:
            run, short = Path(folder) / "run", experiment.override(changes)
            self.runner.train(short, splits["train"], None, run, command="", reporter=Reporter())

    def experiment(self, entry: Entry, splits: Mapping[int, Splits], minutes: float) -> Experiment:
        run = entry.run if self.scale == "paper" else replace(entry.run, resolution=None)
        settings = (*BOOKKEEPING, f"training.budget_minutes={minutes:g}", "data.residence=device", *self.assignments)
        train_split = splits[self.solved.preset(entry).resolution]["train"]
        name = f"data/{entry.data_name}-{train_split.problem.grid.shape[0]}"
        experiment = experiment_of(replace(run, settings=()), self.scale, name, minutes=None, assignments=settings)
        given = () if self.minutes is None else (f"training.budget_minutes={minutes:g}",)
        return experiment.override([*run.settings, *given])

    def evaluated(
        self, entry: Entry, experiment: Experiment, surrogate: Surrogate, splits: Mapping[int, Splits], folder: Path
    ) -> dict[str, Any]:
        """The content of the entry's file."""
        size, scope = self.solved.preset(entry).resolution, self.solved.scope(entry.run)
        options: dict[str, Any] = {"num_frames": surrogate.problem.horizon, "num_starts": scope.num_starts}
        options["device"] = self.device
        # In three dimensions a roll-out takes seconds: their time is measured elsewhere, at no cost to these runs.
        held_out = splits[size][entry.split]
        timing = held_out.problem.grid.num_axes < 3
        result = evaluate(surrogate, held_out, timing=timing, **options).to_dict()
        seed = experiment.training.seed
        result |= provenance(seed=seed, device=self.device)
        own = "".join(f" --set {assignment}" for assignment in self.assignments)
        result["command"] = f"python -m lab.campaign run {entry.group}/{entry.name}{own}"
        known = surrogate.provenance
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
        result["config"] = surrogate.config.model_dump(mode="json")
        result["metrics"] = log_lines(folder / METRICS)
        far = TIMES_AS_FAR * result["num_frames"]
        needed = span(held_out.problem.num_context_frames + far, result["stride"])
        if held_out.problem.num_context_frames and needed <= held_out.num_frames:
            once = {**options, "num_frames": far, "num_starts": 1}
            result["beyond"] = beyond(evaluate(surrogate, held_out, timing=False, **once).to_dict())
        for other in self.solved.others(entry):
            found = evaluate(surrogate, splits[other][entry.split], timing=False, **options).to_dict()
            result.setdefault("transfer", {})[str(other)] = short(found)
        for name in entry.judged_on:
            there = self.solved.judged(entry, name)
            alone = {**options, "num_frames": frames_on(surrogate, there)}
            errors = evaluate(surrogate, there, timing=False, **alone).to_dict()
            result.setdefault("judged_on", {})[name] = with_curve(errors)
        if entry.bundle:
            path = save_bundle(surrogate, folder / "zoo" / entry.bundle, storage=torch.float16, overwrite=True)
            stored = evaluate(load(path), held_out, timing=False, **options).to_dict()
            result["stored_float16"] = short(stored)
        surrogate.cpu()
        return result

    def data_record(self, entry: Entry, splits: Splits) -> dict[str, Any]:
        train_split, held_out = splits["train"], splits[entry.split]
        commands = [
            generate_command(entry, self.data[entry.data_name], split.problem, name, split.num_trajectories)
            for name, split in (("train", train_split), (entry.split, held_out))
        ]
        return {
            "command": "; ".join(commands),
            "train": train_split.num_trajectories,
            entry.split: held_out.num_trajectories,
            "frames": train_split.num_frames,
            "storage": self.data[entry.data_name].storage,
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


def summary(endings: Sequence[Ended]) -> str:
    """One line per entry, and how many ended in which way."""
    lines = [f"{one.word:8s} {one.seconds or 0.0:6.0f} s  {one.label}  {one.detail}" for one in endings]
    counts = {word: sum(one.word == word for one in endings) for word in ("done", "found", "failed")}
    return "\n".join([*lines, ", ".join(f"{count} {word}" for word, count in counts.items())])
