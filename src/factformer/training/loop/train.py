"""Training from beginning to end: the machines, the parts, the folder, the loop."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

from factformer._support.silence import unwarned
from factformer.data.dataset import Dataset
from factformer.errors import UserError
from factformer.training.experiment.assembly import check_batch, check_cut
from factformer.training.experiment.definition import Experiment
from factformer.training.loop.failures import explained
from factformer.training.loop.machine import Machine, is_launched_process, start
from factformer.training.loop.outcome import Outcome
from factformer.training.loop.own import NOTHING, Own
from factformer.training.loop.signals import StopRequest, listening
from factformer.training.loop.state import own_randomness
from factformer.training.loop.trainer import Trainer
from factformer.training.runfolder import checkpoint
from factformer.training.runfolder.folder import RunFolder, check_same
from factformer.training.runfolder.reporting import Reporter


def train(
    experiment: Experiment,
    dataset: Dataset,
    held_out: Dataset | None = None,
    *,
    folder: str | Path,
    machine: Machine = Machine(),  # noqa: B008 - immutable
    resume: bool = False,
    overwrite: bool = False,
    max_minutes: float | None = None,
    command: str = "",
    reporter: Reporter | None = None,
    own: Own = NOTHING,
) -> Outcome:
    """Train the surrogate of an experiment on ``dataset`` and keep the run in ``folder``.

    ``held_out`` is rolled out now and then for the error that is logged and decides the best checkpoint. With
    ``resume`` the run continues from its last checkpoint, or begins if there is none; nothing is removed then. ``own``
    holds a user's own functions.
    """
    if resume and overwrite:
        raise UserError("either resume a run (--resume) or overwrite it (--overwrite), not both")
    run = RunFolder(folder)
    request = StopRequest(max_minutes)
    # The first process of a run holds the folder for all of them.
    held = nullcontext() if is_launched_process() else run.locked(command)
    config = experiment.training
    # Before there are processes, each of which would say what is wrong.
    machine.check_counts()
    if machine.domain > 1:
        check_cut(experiment, sees_frames=bool(own.loss_terms or own.metrics))
    check_batch(config.batch_size, machine.num_processes // machine.domain, config.accumulate)
    with listening(request), held, explained(run, experiment), own_randomness(config.seed):
        begun = resume and run.config.is_file()
        if begun:
            check_same(run.read_config(), experiment, run.path)
        if not is_launched_process():
            if resume:
                run.check_resumable()
            else:
                run.check_free(overwrite)
        fabric = start(machine, config.precision)
        resumed = resume and checkpoint.latest(run.checkpoints) is not None
        init = None if resumed else config.init
        trainer = Trainer(experiment, dataset, held_out, fabric, run, reporter or Reporter(), machine.domain, own, init)
        # Nothing is written before everything is known to fit together.
        if fabric.is_global_zero and not begun:
            if resume:
                trainer.reporter.message(f"no run in {run.path} to resume: starting from the beginning")
            run.create(experiment, command, overwrite)
        fabric.barrier()
        if resume:
            trainer.resume()
            if fabric.is_global_zero:
                run.note(experiment)
        with unwarned("Grad strides do not match"):  # of a kernel of length 1 along an axis, where nothing is lost
            return trainer.run_to_end(request, command)
