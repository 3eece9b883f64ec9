"""Commands that judge: evaluate, inspect, benchmark, reproduce."""

from __future__ import annotations

import json as json_module
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

Source = Annotated[str, typer.Argument(metavar="RUN|BUNDLE", help="Run folder, bundle folder, or zoo name.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for a machine.")]
Device = Annotated[str | None, typer.Option(help="cpu or cuda; by default a GPU where there is one.")]
Precision = Annotated[str, typer.Option(help="32-true or bf16-mixed.")]
Split = Annotated[str | None, typer.Option(help="Which split to use.", show_default="test")]
Assignments = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a configuration value.")
]


class Benchmark(StrEnum):
    """What to measure."""

    attention = "attention"
    model = "model"
    solver = "solver"
    inference = "inference"


class Scale(StrEnum):
    """How large to run."""

    tiny = "tiny"
    reduced = "reduced"
    paper = "paper"


def evaluate(
    source: Source,
    data: Annotated[Path | None, typer.Option(help="Dataset; by default what the run trained on.")] = None,
    split: Split = None,
    frames: Annotated[int | None, typer.Option(help="Frames to predict; default: the horizon.", min=1)] = None,
    starts: Annotated[int, typer.Option(help="Start frames per trajectory.", min=1)] = 4,
    batch_size: Annotated[
        int | None, typer.Option(help="Sequences at once; default: 10 on a plane, 4 in a volume.", min=1)
    ] = None,
    device: Device = None,
    precision: Precision = "32-true",
    samples: Annotated[int, typer.Option(help="Roll-outs to keep for figures and reports.", min=0)] = 4,
    figures: Annotated[bool, typer.Option(help="Draw error trend, spectra and a roll-out.")] = True,
    out: Annotated[Path | None, typer.Option(help="Folder for the results; default: the run folder.")] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace an evaluation on other data or settings.")] = False,
    json: Json = False,
) -> None:
    """Errors of roll-outs over a whole split, with the floor, spectra, time, memory and parameters.

    Writes evaluation.json, rollouts.npz and figures into the run folder or --out.

    Example: factformer evaluate runs/demo --data data/demo
    """
    from factformer.evaluation.run import evaluate_run, run_folder

    with _progress("evaluating", "windows") as progress:
        result = evaluate_run(
            source,
            data,
            split=split,
            out=out,
            num_frames=frames,
            num_starts=starts,
            batch_size=batch_size,
            device=device,
            precision=precision,
            num_samples=samples,
            overwrite=overwrite,
            progress=progress,
        )
    folder = out or run_folder(source)
    if folder is not None and figures and samples:
        from factformer.report.analysis import write_evaluation_figures

        write_evaluation_figures(folder)
    if json:
        _print_json(result)
        return
    from factformer.report.analysis import evaluation_table
    from factformer.report.tables import format_count

    _print_table(evaluation_table(result))
    typer.echo(
        f"{format_count(result['parameters'])} parameters, {result['seconds_per_sequence']:.4g} s per "
        f"sequence and {result['peak_memory_mb'] or float('nan'):.0f} MB at batch {result['batch_size']} on "
        f"{result['hardware']}"
    )
    if folder is not None:
        typer.echo(f"written to {folder}")


def inspect(
    source: Annotated[
        str | None, typer.Argument(metavar="[RUN|BUNDLE]", help="Run folder, bundle folder, or zoo name.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Dataset; by default what the run trained on.")] = None,
    split: Split = None,
    samples: Annotated[int, typer.Option(help="Samples to average over.", min=1)] = 100,
    device: Device = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the results; default: RUN/inspection.")] = None,
    recipe: Annotated[str | None, typer.Option(help="Look at a recipe instead of something trained.")] = None,
    scale: Annotated[str, typer.Option(help="Scale of the recipe: small or paper.")] = "paper",
    parameters: Annotated[bool, typer.Option("--parameters", help="Print the parameter count alone.")] = False,
    assignments: Assignments = None,
    json: Json = False,
) -> None:
    """Learned kernels: spectra, stationarity and heat maps; or the parameter count of a recipe's model.

    Examples:
    factformer inspect runs/demo --data data/demo
    factformer inspect --recipe kolmogorov --parameters --set model.name=fno
    """
    from factformer.errors import UserError

    if (source is None) == (recipe is None):
        raise UserError("name either a run or bundle to look at, or a recipe with --recipe")
    if recipe is not None:
        from factformer.evaluation.parameters import count_parameters
        from factformer.recipes import build

        experiment = build(recipe, scale, assignments or [])
        count = count_parameters(experiment)
        if parameters:
            _print_json({"parameters": count}) if json else typer.echo(str(count))
        elif json:
            _print_json({"parameters": count, "experiment": experiment.model_dump(mode="json")})
        else:
            typer.echo(experiment.to_yaml().rstrip())
            typer.echo(f"# {count} parameters")
        return
    assert source is not None
    if assignments:
        raise UserError("--set goes with --recipe: what is trained cannot be changed")
    if parameters:
        from factformer.bundle import load

        count = load(source).num_parameters
        _print_json({"parameters": count}) if json else typer.echo(str(count))
        return
    from factformer.evaluation.inspection import inspect_run
    from factformer.evaluation.run import run_folder
    from factformer.report.analysis import attention_table, write_attention_figures

    run = run_folder(source)
    folder = out or (Path(f"inspection-{Path(source).name}") if run is None else run / "inspection")
    with _progress("looking at kernels", "samples") as progress:
        analysis = inspect_run(
            source, data, split=split, out=folder, num_samples=samples, device=device, progress=progress
        )
    write_attention_figures(analysis, folder)
    if json:
        _print_json(analysis.summary)
        return
    _print_table(attention_table(analysis.summary))
    typer.echo(f"written to {folder}")


def benchmark(
    kind: Annotated[Benchmark, typer.Argument(help="What to measure.")],
    source: Annotated[
        str | None, typer.Argument(metavar="[RUN|BUNDLE]", help="For solver and inference: the surrogate.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="solver: dataset; default: what the run trained on.")] = None,
    over: Annotated[
        str | None,
        typer.Option(help="attention: kernel-dim (on a plane) or grid (in a cube).", show_default="kernel-dim"),
    ] = None,
    sizes: Annotated[
        str | None,
        typer.Option(help="Comma-separated kernel dimensions, grid sizes, batch sizes or solver grids to go through."),
    ] = None,
    problem: Annotated[
        str | None, typer.Option(help="model: the problem.", show_default="kolmogorov_flow")
    ] = None,
    resolution: Annotated[int | None, typer.Option(help="Points per axis.", min=4)] = None,
    models: Annotated[str | None, typer.Option(help="model: comma-separated names; default: all.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Samples at once.", min=1)] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="model: our kernels against textbook formulations and the chip's floor.")
    ] = False,
    cases: Annotated[
        str | None, typer.Option(help="--compare: comma-separated rows of 128, 256, box, box4, 64; default: all.")
    ] = None,
    device: Device = None,
    precision: Annotated[str | None, typer.Option(help="32-true or bf16-mixed.", show_default="32-true")] = None,
    assignments: Assignments = None,
    out: Annotated[Path | None, typer.Option(help="Write the results here as JSON, with a Markdown table.")] = None,
    json: Json = False,
) -> None:
    """Seconds, peak memory and operations: of attention, of all models, of roll-outs, against the solver.

    Examples:
    factformer benchmark attention --over grid --sizes 16,24,32 --set model.dim=32
    factformer benchmark solver runs/demo --data data/demo
    factformer benchmark model --compare --out speed.json
    """
    from factformer.cli._benchmark import run_benchmark

    result = run_benchmark(
        kind.value,
        source=source,
        data=data,
        over=over,
        sizes=_integers("--sizes", sizes),
        problem=problem,
        resolution=resolution,
        models=_names(models),
        batch_size=batch_size,
        device=device,
        precision=precision,
        assignments=assignments or [],
        report=_say_row,
        compare=compare,
        cases=_names(cases),
    )
    from factformer.report.analysis import benchmark_table

    table = benchmark_table(result)
    if out is not None:
        from factformer.evaluation.provenance import write_json

        write_json(out, result)
        out.with_suffix(".md").write_text(table.to_markdown(), encoding="utf-8")
    if json:
        _print_json(result)
        return
    _print_table(table)
    typer.echo(f"on {result['hardware']}")


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

    Runs that are finished are found again and not repeated; started ones go on where they stopped.

    Example: factformer reproduce table1 --scale tiny --out reproduction
    """
    from factformer.errors import UserError
    from factformer.reproduce import reproduce_target, targets

    if list_targets:
        for name, found in targets().items():
            typer.echo(f"{name:<26} {found.title}")
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
        report=_say,
        live=scale != Scale.tiny,
    )
    if json:
        _print_json(result.to_dict())
    else:
        _print_table(result.table())
        typer.echo(f"written to {result.folder}")
    if result.failed:
        raise typer.Exit(1)


@contextmanager
def _progress(title: str, unit: str) -> Iterator[Callable[[int, int], None]]:
    """A callback that moves a bar; it appears with the first call that leaves more to do."""
    from factformer.data.progress import ProgressBar

    state: dict[str, Any] = {"bar": None, "done": 0}

    def update(done: int, total: int) -> None:
        if state["bar"] is None:
            if done >= total:
                return
            state["bar"] = ProgressBar(title, total, unit=unit).__enter__()
        state["bar"].advance(done - state["done"])
        state["done"] = done

    try:
        yield update
    finally:
        if state["bar"] is not None:
            state["bar"].__exit__(None, None, None)


def _integers(option: str, text: str | None) -> list[int]:
    from factformer.errors import UserError

    try:
        numbers = [int(part) for part in text.split(",")] if text else []
    except ValueError:
        numbers = [0]
    if any(number < 1 for number in numbers):
        raise UserError(f"{option} takes whole numbers above 0 with commas, such as 64,128; got {text!r}")
    return numbers


def _names(text: str | None) -> list[str] | None:
    return [name.strip() for name in text.split(",")] if text else None


def _say(message: str) -> None:
    typer.echo(message, err=True)


def _say_row(row: Mapping[str, Any]) -> None:
    name = row.get("label") or row.get("contender") or f"batch {row.get('batch_size')}, {row.get('precision')}"
    seconds = row.get("training_seconds") or row.get("seconds")
    _say(f"{name}: {f'{seconds:.4g} s' if seconds else row.get('status')}")


def _print_json(values: Any) -> None:
    from factformer.evaluation.provenance import finite

    typer.echo(json_module.dumps(finite(values), indent=2, allow_nan=False))


def _print_table(table: Any) -> None:
    from rich.console import Console

    # A file or pipe has no width that cells would have to be cut to.
    Console(width=None if sys.stdout.isatty() else 250).print(table.to_rich())
