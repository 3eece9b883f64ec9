"""The command that measures: benchmark."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from factformer.cli._answers import Assignments, Device, Json, Plugin, number, print_json, print_table, say, tell_folded


class Benchmark(StrEnum):
    """What to measure."""

    attention = "attention"
    model = "model"
    solver = "solver"
    inference = "inference"


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
    problem: Annotated[str | None, typer.Option(help="model: the problem.", show_default="kolmogorov_flow")] = None,
    resolution: Annotated[int | None, number("Points per axis.", least=4)] = None,
    models: Annotated[str | None, typer.Option(help="model: comma-separated names; default: all.")] = None,
    batch_size: Annotated[int | None, number("Samples at once.")] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="model: our kernels against textbook formulations and the chip's floor.")
    ] = False,
    cases: Annotated[
        str | None, typer.Option(help="--compare: comma-separated rows of 128, 256, box, box4, 64; default: all.")
    ] = None,
    device: Device = None,
    precision: Annotated[str | None, typer.Option(help="32-true or bf16-mixed.", show_default="32-true")] = None,
    assignments: Assignments = None,
    plugin: Plugin = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Write the results here as JSON, with a Markdown table; default of solver: the run folder."),
    ] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace an existing file.")] = False,
    json: Json = False,
) -> None:
    """Seconds, peak memory and operations: of attention, of all models, of roll-outs, against the solver.

    \b
    Examples:
    factformer benchmark attention --over grid --sizes 16,24,32 --set model.dim=32
    factformer benchmark solver runs/demo --data data/demo
    factformer benchmark model --compare --out speed.json
    """
    from factformer.cli._benchmark import run_benchmark
    from factformer.errors import UserError

    for path in [] if out is None else [out, out.with_suffix(".md")]:
        if path.exists() and not overwrite:
            raise UserError(f"{path} exists; add --overwrite to replace it or choose another name")
    out = out or _place_in_run(kind, source)
    result = run_benchmark(
        kind.value,
        source=source,
        data=data,
        over=over,
        sizes=_integers("--sizes", sizes),
        problem=problem,
        resolution=resolution,
        models=_names(models),
        assignments=assignments or [],
        batch_size=batch_size,
        device=device,
        precision=precision,
        report=_say_row,
        compare=compare,
        cases=_names(cases),
    )
    from factformer.evaluation.solver.results import SolverBenchmark
    from factformer.report.analysis import benchmark_table, save_figures, solver_figure

    table = benchmark_table(result)
    bill = SolverBenchmark.of(result) if kind == Benchmark.solver else None
    if out is not None:
        from factformer._support.files import whole_file
        from factformer.evaluation.provenance import write_json

        write_json(out, result)
        with whole_file(out.with_suffix(".md")) as partial:
            partial.write_text(table.to_markdown(), encoding="utf-8")
        if bill is not None:
            save_figures({out.stem: solver_figure(bill)}, out.parent)
    if json:
        print_json(result)
        return
    print_table(table)
    for line in [] if bill is None else bill.sentences():
        tell_folded(line)
    tell_folded(f"on {result['hardware']}" + ("" if out is None else f"; written to {out}"))


def _place_in_run(kind: Benchmark, source: str | None) -> Path | None:
    """Where the solver benchmark of a run lies, for its report; an earlier one is replaced, nothing else."""
    from factformer._support.documents import read_json
    from factformer._support.run_names import SOLVER
    from factformer.evaluation.run import check_writable, require_ours, run_folder

    folder = run_folder(source) if kind == Benchmark.solver and source is not None else None
    if folder is None:
        return None
    check_writable(folder)
    require_ours({folder / SOLVER: lambda path: read_json(path).get("benchmark") == "solver"}, "a solver benchmark")
    return folder / SOLVER


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


def _say_row(row: Mapping[str, Any]) -> None:
    name = row.get("label") or row.get("method") or f"batch {row.get('batch_size')}, {row.get('precision')}"
    seconds = row.get("training_seconds") or row.get("seconds")
    say(f"{name}: {f'{seconds:.4g} s' if seconds else row.get('status')}")
