"""The command that trains: train."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from factformer.cli._answers import Json, Plugin, TrainingDevices, enough_devices, number, print_json, with_shorthands

STOPPED = 3
"""The exit code of a run that stopped before its end and can be resumed."""


def train(
    recipe: Annotated[
        str | None,
        typer.Argument(
            help="A recipe (see `factformer list`), or a config.yaml; not needed with --data or --resume.",
            show_default=False,
        ),
    ] = None,
    scale: Annotated[str | None, typer.Option(help="small (default) or paper.", show_default=False)] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Folder with train.hdf5 and valid.hdf5; alone, what `fit` does with it.", show_default=False),
    ] = None,
    init: Annotated[
        str | None,
        typer.Option(help="Fine-tune: begin with this bundle, run or name of the zoo.", show_default=False),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Run folder; by default runs/RECIPE or runs/DATA.", show_default=False)
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume from the last checkpoint in --out.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in --out.")] = False,
    max_minutes: Annotated[
        float | None,
        typer.Option(help="Save and stop after this long; --resume continues.", show_default=False),
    ] = None,
    budget_minutes: Annotated[
        float | None,
        typer.Option(
            help="Train for this long instead of a number of updates; schedules stretch over it.",
            show_default=False,
        ),
    ] = None,
    device: Annotated[str, typer.Option("--device", "--accelerator", help="auto, cpu, cuda or mps.")] = "auto",
    devices: TrainingDevices = None,
    num_nodes: Annotated[int, number("Computers that train together.", most=100_000)] = 1,
    strategy: Annotated[str, typer.Option(help="auto, ddp or fsdp.")] = "auto",
    domain: Annotated[int, number("Processes among which the grid of a sample is cut.", most=4096)] = 1,
    precision: Annotated[
        str | None, typer.Option(help="32-true or bf16-mixed; by default the recipe's.", show_default=False)
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any config value, e.g. training.updates=500; may be repeated.", show_default=False),
    ] = None,
    plugin: Plugin = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also log to TensorBoard.")] = False,
    wandb: Annotated[bool, typer.Option("--wandb", help="Also log to Weights & Biases.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
    json: Json = False,
) -> None:
    """Train a surrogate. SIGINT, SIGTERM and --max-minutes save and stop with exit code 3; --resume continues exactly.

    With --resume, --set training.updates=N prolongs a run, a finished one too; its schedule stretches over all updates.

    Example: factformer train kolmogorov --data data/kolmogorov_flow --out runs/kolmogorov --set model.dim=64
    """
    import math
    import sys

    from factformer import recipes
    from factformer.errors import UserError
    from factformer.training import Machine, run_experiment
    from factformer.training.experiment.options import choose_experiment, choose_machine, fine_tuning
    from factformer.training.runfolder.trackers import open_reporter

    if max_minutes is not None and not 0 < max_minutes < math.inf:
        raise UserError(f"--max-minutes must be more than 0 and finite, got {max_minutes:g}")
    shorthands = {
        "data.path": data,
        "training.budget_minutes": budget_minutes,
        "training.precision": precision,
    }
    changes = with_shorthands(assignments, shorthands)
    devices = enough_devices(devices, domain, num_nodes)
    machine: Machine = choose_machine(device, devices, num_nodes, strategy, domain)
    chosen: list[str] = []
    experiment, folder = choose_experiment(
        recipes.build, recipe, scale, [*fine_tuning(init), *changes], out, resume, chosen.append
    )
    loggers = [name for name, wanted in (("tensorboard", tensorboard), ("wandb", wandb)) if wanted]
    reporter = open_reporter(folder, quiet=quiet, loggers=loggers)
    for line in chosen:
        reporter.message(line)
    outcome = run_experiment(
        experiment,
        folder,
        machine=machine,
        resume=resume,
        overwrite=overwrite,
        max_minutes=max_minutes,
        command=" ".join(["factformer", *sys.argv[1:]]),
        reporter=reporter,
    )
    if outcome.rank != 0:
        return
    if json:
        print_json(outcome.summary())
    elif outcome.finished:
        typer.echo(f"trained {outcome.update} updates; bundle at {outcome.folder / 'bundle'}")
    else:
        typer.echo(
            f"stopped after update {outcome.update} ({outcome.reason}); everything is saved, resume with "
            f"`factformer train --resume --out {outcome.folder}`"
        )
    if not outcome.finished:
        raise typer.Exit(STOPPED)
