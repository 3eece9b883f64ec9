"""The training loop, top to bottom.

Everything random is a function of (seed, update), and everything else that an update depends on is in the
checkpoint, so a run that is killed and resumed takes the same steps as one that is not.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor

from factformer.bundle import load, save_bundle
from factformer.data.dataset import Dataset
from factformer.data.windows import Windows
from factformer.errors import NonFinite
from factformer.parallel.attaching import hold_part
from factformer.parallel.part import GridPart
from factformer.problem import STEP
from factformer.protocols import Plan, build_protocol
from factformer.surrogate import Surrogate
from factformer.training.experiment.assembly import (
    check_batch,
    check_window,
    new_surrogate,
    run_identity,
    take_weights,
)
from factformer.training.experiment.definition import Experiment
from factformer.training.feed.feeding import Visits, open_feed
from factformer.training.feed.parts import PartDataset
from factformer.training.feed.preparation import Preparation, needs_whole_frames
from factformer.training.feed.steps import SteppedDataset
from factformer.training.footprint.checking import check_memory
from factformer.training.loop.captured import CapturedStep
from factformer.training.loop.clock import Clock
from factformer.training.loop.failures import Diverged, exploded
from factformer.training.loop.learning_rate import learning_rate_at
from factformer.training.loop.machine import Agreement, whole
from factformer.training.loop.objective import Objective
from factformer.training.loop.optimizer.ema import WeightAverage
from factformer.training.loop.outcome import Outcome, provenance
from factformer.training.loop.own import NOTHING, Own
from factformer.training.loop.signals import StopRequest
from factformer.training.loop.state import RunState, Tally, build_optimizer, shipped
from factformer.training.loop.step import Step, StepParts, train_step
from factformer.training.loop.validation import open_validation
from factformer.training.runfolder import checkpoint
from factformer.training.runfolder.checkpoint import Snapshot
from factformer.training.runfolder.folder import RunFolder, check_identity, prolonged
from factformer.training.runfolder.reporting import Reporter, longer_run, other_threads

MAX_ROLLBACKS = 10


class Trainer:
    """The parts of a run, put together once; `run_to_end` is the loop."""

    def __init__(
        self,
        experiment: Experiment,
        dataset: Dataset,
        held_out: Dataset | None,
        fabric: Fabric,
        run: RunFolder,
        reporter: Reporter,
        domain: int = 1,
        own: Own = NOTHING,
        init: str | None = None,
    ) -> None:
        """``init`` is the bundle that a new run begins with; a resumed one has its weights already."""
        config, strides = experiment.training, experiment.protocol.strides
        if experiment.protocol.several_steps or STEP in dataset.problem.parameters:
            dataset = SteppedDataset(dataset, strides=strides)
            held_out = None if held_out is None else SteppedDataset(held_out, strides=strides)
        problem = dataset.problem.with_stride(strides[0])
        self.experiment, self.config, self.fabric, self.run = experiment, config, fabric, run
        self.reporter = reporter if fabric.is_global_zero else Reporter()
        self.dataset = dataset
        self.protocol = build_protocol(experiment.protocol, problem)
        num_groups = fabric.world_size // domain  # each trains on samples of its own
        check_batch(config.batch_size, num_groups, config.accumulate)
        check_memory(experiment, self.protocol, num_groups, domain, on_cpu=fabric.device.type == "cpu")

        self.surrogate = new_surrogate(experiment, dataset, self.protocol)
        if init is not None:
            for line in take_weights(self.surrogate, load(init), init):
                self.reporter.message(line)
        self.part: GridPart | None = None
        if domain > 1:
            self.part = hold_part(self.surrogate, num_groups, domain, fabric.device.type)
        self.own = own
        self.objective = Objective(self.surrogate, self.protocol, config.gradient_loss, own)
        wrapped = fabric.setup_module(self.objective)
        optimizer = build_optimizer(self.surrogate, config)  # after the setup: sharding replaces the parameters
        self.parts = StepParts(
            fabric,
            wrapped,
            fabric.setup_optimizers(optimizer),
            list(self.surrogate.parameters()),
            config.clip,
            config.accumulate,
        )
        recorded = CapturedStep.suits(self.parts) and not own.loss_terms  # these may do what a graph cannot hold
        self.step: Step = CapturedStep(self.objective, self.parts) if recorded else train_step

        self.agreement = Agreement(fabric)
        parameters = dict(self.surrogate.named_parameters())
        self.average = None if config.ema_decay is None else WeightAverage(parameters, config.ema_decay)
        tally = Tally(self.objective.terms, fabric.device)
        self.state = RunState(self.surrogate, optimizer, self.average, tally, self.agreement)
        self.clock = Clock(config, fabric.device)

        length = self.protocol.window_length
        check_window(self.protocol, dataset.num_frames, strides[-1])
        windows = Windows(dataset.num_trajectories, dataset.num_frames, length, experiment.data.stride, strides)
        self.visits = Visits(
            windows, config.seed, config.batch_size, rank=fabric.global_rank // domain, num_ranks=num_groups
        )
        read = dataset
        if self.part is not None:
            read = dataset if needs_whole_frames(experiment) else PartDataset(dataset, self.part)
            held_out = None if held_out is None else PartDataset(held_out, self.part)
        self.feed = open_feed(read, self.visits, fabric.device, experiment.data)
        self.validation = open_validation(held_out, config, fabric.device, strides[0])
        self.prepare = Preparation(experiment, dataset, problem, self.part)
        self.seconds_waiting = 0.0
        self.identity = run_identity(experiment, dataset, problem)

    def resume(self) -> None:
        """Go back to the last checkpoint; without one, the run begins at its beginning."""
        path = checkpoint.latest(self.run.checkpoints)
        if path is None:
            return
        snapshot = self.restore(path)
        if self.fabric.is_global_zero:
            self.run.reset_log(snapshot.metrics)
        self.reporter.message(f"resumed after update {self.state.counters.update}")
        counters, more = self.state.counters, prolonged(snapshot.state, self.experiment)
        if more:
            progress = self.clock.progress(counters.update + 1, counters.seconds)
            rate = learning_rate_at(progress, self.config, counters)
            self.reporter.message(longer_run(more, rate, counters.last.get("learning_rate")))
        before, now = snapshot.state.get("num_threads"), torch.get_num_threads()
        if self.fabric.device.type == "cpu" and before not in (None, now):
            self.reporter.message(other_threads(before, now))

    def load(self, path: Path) -> Snapshot:
        """A checkpoint of this run; raises if it is of another one."""
        snapshot = checkpoint.load(path)
        check_identity(path, snapshot.state, self.identity)
        return snapshot

    def restore(self, path: Path) -> Snapshot:
        """Go back to a checkpoint."""
        snapshot = self.load(path)
        self.state.restore(path, snapshot, self.fabric.global_rank)
        return snapshot

    def run_to_end(self, request: StopRequest, command: str) -> Outcome:
        """Update after update until the end or until someone asks to stop."""
        counters = self.state.counters
        if counters.update == 0 and counters.attempt == 0:
            self.save()  # something to fall back on, whatever happens
        self.points: int | None = None  # those of the last update of this process
        self.batches = self.feed.batches(counters.update + 1)
        self.clock.start(counters.seconds)
        self.reporter.begin(self.clock, self.config, counters.update, self.run.path)
        try:
            while True:
                try:
                    seconds, stop = self.agreement.largest(self.clock.seconds, float(bool(request.reason)))
                    update = self.state.counters.update + 1
                    progress = self.clock.progress(update, seconds)
                    if progress >= 1:
                        return self.finish(command)
                    if stop:
                        return self.stop(request.reason or "another process was asked to stop")
                    self.advance(update, progress)
                    if self.own.wants_end(update, self.surrogate):
                        return self.finish(command)
                except Diverged as trouble:
                    self.roll_back(trouble)
        finally:
            self.batches.close()
            self.reporter.end()

    def advance(self, update: int, progress: float) -> None:
        """One update, and the log line and checkpoint that fall due with it."""
        counters, config = self.state.counters, self.config
        plan = self.protocol.whole_plan(update, progress)
        learning_rate = learning_rate_at(progress, config, counters)
        points = plan.get("coarse", 1)  # other points may need other kernels, which are compiled first
        with nullcontext() if points == self.points else self.clock.paused():
            self.points = points
            before = time.perf_counter()
            window = next(self.batches)
            self.seconds_waiting += time.perf_counter() - before
            window = self.prepare(window, update, self.visits.slots)
            try:
                losses = self.step(self.parts, window, plan, learning_rate)
            except NonFinite as error:  # the feed gives finite frames, so the surrogate made these
                raise Diverged(f"the prediction is no longer finite at update {update}") from error
            self.state.tally.add(losses)
            if self.average is not None:
                self.average.update(update)
        counters.update = update

        is_last = self.clock.progress(update + 1, 0.0) >= 1
        validate = self.validation is not None and (update % config.validate_every == 0 or is_last)
        if validate or update % config.log_every == 0:
            self.log(update, progress, plan, learning_rate, validate)
        if update % config.checkpoint_every == 0 or counters.best == self.checkpoint_name():
            self.save()

    def log(self, update: int, progress: float, plan: Plan, learning_rate: float, validate: bool) -> None:
        """One line of ``metrics.jsonl``; the only place besides checkpoints that waits for the device."""
        counters, seconds = self.state.counters, self.clock.seconds
        values = self.checked_means() if self.state.tally.count else self.last_means()
        line: dict[str, Any] = {
            "update": update,
            "loss": values.pop("loss"),
            "seconds": seconds,
            "progress": progress,
            "learning_rate": learning_rate,
            **plan,
            **values,
        }
        if validate:
            assert self.validation is not None
            with self.clock.paused(), self.fabric.autocast(), self.averaged():
                line |= self.validation.line(self.objective)
            total = line["validation"]
            if total is not None and (counters.best_error is None or total < counters.best_error):
                counters.best, counters.best_error = self.checkpoint_name(), total
        lowest = counters.lowest_loss
        counters.lowest_loss = line["loss"] if lowest is None else min(lowest, line["loss"])
        counters.last = line
        self.state.tally.reset()
        if self.fabric.is_global_zero:
            self.run.append(line)
        self.reporter.line(line, self.seconds_waiting)

    def averaged(self) -> AbstractContextManager[None]:
        """The moving average in place of the weights, if there is one."""
        return self.average.applied() if self.average else nullcontext()

    def checked_means(self) -> dict[str, float]:
        """Means since the last line, alike in every process; raises where the loss went astray."""
        self.state.tally.combine(self.fabric)
        values = self.state.tally.means()
        if self.state.tally.count and exploded(values, self.state.counters.lowest_loss, self.config.explosion):
            raise Diverged(f"the loss went to {values['loss']:g} by update {self.state.counters.update}")
        return values

    def last_means(self) -> dict[str, float]:
        """What the line before said, where a time budget ends right after it."""
        return {name: self.state.counters.last.get(name, float("nan")) for name in self.state.tally.names}

    def checkpoint_name(self) -> str:
        return checkpoint.name_of(self.state.counters.update, self.state.counters.attempt)

    def save(self) -> None:
        """A checkpoint of this moment, and no more old ones than asked for."""
        with self.clock.paused():
            self.checked_means()
            self.state.counters.seconds = self.clock.seconds
            identity = {**self.identity, "num_threads": torch.get_num_threads()}
            snapshot = self.state.snapshot(identity, "".join(self.run.lines))
            if self.fabric.is_global_zero:
                checkpoint.save(self.run.checkpoints, snapshot)
                checkpoint.prune(self.run.checkpoints, self.config.keep_last, self.state.counters.best)
            self.fabric.barrier()

    def roll_back(self, trouble: Diverged) -> None:
        """Back to the last checkpoint at half the learning rate, if the configuration asks for that."""
        path = checkpoint.latest(self.run.checkpoints)
        assert path is not None  # there is one from the very start
        self.fabric.barrier()
        attempt = self.state.counters.attempt + 1
        if self.config.on_divergence == "stop" or attempt > MAX_ROLLBACKS:
            advice = (
                "Lower training.learning_rate, or set training.on_divergence=halve to continue from there"
                if self.config.on_divergence == "stop"
                else f"{MAX_ROLLBACKS} halvings of the learning rate did not help: are there outliers in the data?"
            )
            raise Diverged(f"{trouble}; the last good checkpoint is {path}. {advice}")
        snapshot = self.restore(path)
        self.state.counters.attempt = attempt
        self.state.counters.attempt_began = self.state.counters.update
        if self.fabric.is_global_zero:
            self.run.reset_log(snapshot.metrics)
        self.reporter.message(f"{trouble}; back to {path.name} at {0.5**attempt:g} of the learning rate")
        self.save()
        self.batches.close()
        self.batches = self.feed.batches(self.state.counters.update + 1)

    def stop(self, reason: str) -> Outcome:
        """Save; the run can be resumed later."""
        self.save()
        return self.outcome(reason)

    def finish(self, command: str) -> Outcome:
        """The last line of the log, the last checkpoint, and the bundle."""
        counters = self.state.counters
        progress = self.clock.progress(counters.update, self.clock.seconds)
        known = counters.last.get("update") == counters.update and "validation" in counters.last
        validate = self.validation is not None and not known
        if self.state.tally.count or validate:
            plan = self.protocol.whole_plan(counters.update, progress)
            rate = learning_rate_at(progress, self.config, counters)
            self.log(counters.update, progress, plan, rate, validate)
        self.save()
        surrogate = new_surrogate(self.experiment, self.dataset, self.protocol)
        surrogate.load_state_dict(self.weights_to_ship())
        surrogate.provenance = provenance(self.experiment, self.dataset, counters, command)
        if self.fabric.is_global_zero:
            save_bundle(surrogate, self.run.bundle, overwrite=True)
        self.fabric.barrier()
        return self.outcome(surrogate=surrogate.eval())

    def weights_to_ship(self) -> dict[str, Tensor]:
        best = self.state.counters.best
        if self.config.ship == "best" and best not in (None, self.checkpoint_name()):
            path = self.run.checkpoints / str(best)
            snapshot = self.load(path)
            self.state.check(path, snapshot.tensors)
            return shipped(snapshot)
        with self.averaged():
            return {name: whole(tensor) for name, tensor in self.surrogate.state_dict().items()}

    def outcome(self, reason: str = "", surrogate: Surrogate | None = None) -> Outcome:
        counters = self.state.counters
        return Outcome(
            surrogate is not None,
            counters.update,
            self.run.path,
            reason,
            surrogate,
            rank=self.fabric.global_rank,
            last=counters.last,
        )
