"""Commands that judge: evaluate, inspect, reproduce."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from factformer.cli._answers import (
    Assignments,
    Device,
    Devices,
    Domain,
    Json,
    Plugin,
    Precision,
    Source,
    Split,
    moving_bar,
    number,
    print_json,
    print_table,
    say,
    tell,
    tell_folded,
)


class Scale(StrEnum):
    """How large to run."""

    tiny = "tiny"
    reduced = "reduced"
    paper = "paper"


def evaluate(
    source: Source,
    data: Annotated[Path | None, typer.Option(help="Dataset; by default what the run trained on.")] = None,
    split: Split = None,
    frames: Annotated[int | None, number("Frames to predict; default: the horizon.")] = None,
    starts: Annotated[int, number("Start frames per trajectory.")] = 4,
    stride: Annotated[int | None, number("Every s-th frame, for a surrogate of several time steps.")] = None,
    batch_size: Annotated[int | None, number("Sequences at once; default: 10 on a plane, 4 in a volume.")] = None,
    device: Device = None,
    precision: Precision = "32-true",
    domain: Domain = 1,
    devices: Devices = None,
    samples: Annotated[int, number("Roll-outs to keep for figures and reports.", least=0)] = 4,
    figures: Annotated[bool, typer.Option(help="Draw error trend, spectra and a roll-out.")] = True,
    out: Annotated[Path | None, typer.Option(help="Folder for the results; default: the run folder.")] = None,
    plugin: Plugin = None,
    overwrite: Annotated[bool, typer.Option(help="Replace an evaluation on other data or settings.")] = False,
    json: Json = False,
) -> None:
    """Errors of roll-outs over a whole split, with the floor, spectra, time, memory and parameters.

    Writes evaluation.json, rollouts.npz and figures into the run folder or --out.

    Example: factformer evaluate runs/demo --data data/demo
    """
    from factformer import catalog
    from factformer.cli._processes import several_processes
    from factformer.evaluation.run import evaluate_run, run_folder
    from factformer.training.cut_predictions import Sharing

    with moving_bar("evaluating", "windows") as progress:
        result = evaluate_run(
            source,
            data,
            split=split,
            out=out,
            num_frames=frames,
            num_starts=starts,
            stride=stride,
            batch_size=batch_size,
            device=device,
            precision=precision,
            sharing=Sharing(domain, devices, device, several_processes),
            num_samples=samples,
            overwrite=overwrite,
            progress=progress,
            metrics=catalog.brought("metrics"),
        )
    folder = out or run_folder(source)
    if folder is not None and figures:
        from factformer.report.analysis import write_evaluation_figures

        write_evaluation_figures(folder)
    if json:
        print_json(result.to_dict())
        return
    from factformer.report.analysis import evaluation_table
    from factformer.report.tables import format_count

    print_table(evaluation_table(result))
    tell_folded(
        f"{format_count(result.parameters)} parameters, {result.seconds_per_sequence:.4g} s per "
        f"sequence and {result.peak_memory_mb or float('nan'):.0f} MB at batch {result.batch_size} on "
        f"{result.hardware}"
    )
    for name, values in result.metrics.items():
        tell_folded(f"{name}: {values.mean:.4g} ± {values.standard_error:.2g} (floor {values.floor:.4g})")
    if result.stride > 1:
        tell_folded(
            f"a frame of the surrogate is {result.stride} of the data, {result.frame_dt:g} in time: scored at those"
        )
    if result.other_parameters:
        tell_folded(f"other data than it was trained on: {result.other_parameters}")
    if folder is not None:
        tell(f"written to {folder}")


def inspect(
    source: Annotated[
        str | None, typer.Argument(metavar="[RUN|BUNDLE]", help="Run folder, bundle folder, or zoo name.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Dataset; by default what the run trained on.")] = None,
    split: Split = None,
    samples: Annotated[int, number("Samples to average over.")] = 100,
    device: Device = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the results; default: RUN/inspection.")] = None,
    recipe: Annotated[str | None, typer.Option(help="Look at a recipe instead of something trained.")] = None,
    scale: Annotated[str, typer.Option(help="Scale of the recipe: small or paper.")] = "paper",
    parameters: Annotated[bool, typer.Option("--parameters", help="Print the parameter count alone.")] = False,
    assignments: Assignments = None,
    plugin: Plugin = None,
    overwrite: Annotated[bool, typer.Option(help="Replace an earlier inspection in that folder.")] = False,
    json: Json = False,
) -> None:
    """Learned kernels: spectra, stationarity and heat maps; or the parameter count of a recipe's model.

    \b
    Examples:
    factformer inspect runs/demo --data data/demo
    factformer inspect --recipe kolmogorov --parameters --set model.name=fno
    """
    from factformer.errors import UserError

    if (source is None) == (recipe is None):
        raise UserError("name either a run or bundle to look at, or a recipe with --recipe")
    if recipe is not None:
        from factformer.recipes import build
        from factformer.training.parameters import count_parameters

        experiment = build(recipe, scale, assignments or [])
        count = count_parameters(experiment)
        if parameters:
            print_json({"parameters": count}) if json else tell(str(count))
        elif json:
            print_json({"parameters": count, "experiment": experiment.model_dump(mode="json")})
        else:
            typer.echo(experiment.to_yaml().rstrip())
            tell(f"# {count} parameters")
        return
    assert source is not None
    if assignments:
        raise UserError("--set goes with --recipe: what is trained cannot be changed")
    if parameters:
        from factformer.bundle import load

        count = load(source).num_parameters
        print_json({"parameters": count}) if json else tell(str(count))
        return
    from factformer.evaluation.inspection import ATTENTION_FILE, inspect_run
    from factformer.evaluation.run import run_folder
    from factformer.report.analysis import attention_table, write_attention_figures

    run = run_folder(source)
    folder = out or (Path(f"inspection-{Path(source).name}") if run is None else run / "inspection")
    if (folder / ATTENTION_FILE).exists() and not overwrite:
        raise UserError(f"{folder} holds an inspection; add --overwrite to replace it or choose another folder")
    with moving_bar("looking at kernels", "samples") as progress:
        analysis = inspect_run(
            source, data, split=split, out=folder, num_samples=samples, device=device, progress=progress
        )
    write_attention_figures(analysis, folder)
    if json:
        print_json(analysis.summary)
        return
    print_table(attention_table(analysis.summary))
    tell(f"written to {folder}")


def reproduce(
    target: Annotated[str, typer.Argument(help="A table or figure of the paper; see --list.")] = "",
    scale: Annotated[Scale, typer.Option(help="tiny: minutes on a CPU; reduced: a budget; paper.")] = Scale.reduced,
    budget_minutes: Annotated[
        float | None, typer.Option(help="Wall-clock limit; training is cut to fit at reduced scale.", min=0)
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for runs, data and tables.")] = Path("reproduction"),
    device: Device = None,
    assignments: Assignments = None,
    list_targets: Annotated[bool, typer.Option("--list", help="List the targets and exit.")] = False,
    json: Json = False,
) -> None:
    """A table or figure of the paper, end to end, with an honest status for each cell.

    Runs that are finished are found again and not repeated; started ones resume where they stopped.

    Example: factformer reproduce table1 --scale tiny --out reproduction
    """
    from factformer.errors import UserError
    from factformer.studies import reproduce_target, targets

    if list_targets:
        for name, found in targets().items():
            tell(f"{name:<26} {found.title}")
        return
    if not target:
        raise UserError(f"name what to reproduce: {', '.join(targets())}")
    result = reproduce_target(
        target,
        scale=scale.value,
        budget_minutes=budget_minutes,
        out=out,
        device=device,
        assignments=assignments or [],
        report=say,
        live=scale != Scale.tiny,
    )
    if json:
        print_json(result.to_dict())
    else:
        print_table(result.table())
        tell(f"written to {result.folder}")
    if result.failed:
        raise typer.Exit(1)
