"""The command that compares: many runs, one table."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from factformer.cli._answers import Device, Json, Plugin, number, print_json, print_table, say, tell


class StudyScale(StrEnum):
    """How large the runs of a study are."""

    tiny = "tiny"
    small = "small"
    reduced = "reduced"
    paper = "paper"


def study(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE.yaml|RECIPE]", help="A study, or the recipe to compare on; not needed with --data."
        ),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder of your own data with train.hdf5 and test.hdf5, instead of a recipe.")
    ] = None,
    models: Annotated[str | None, typer.Option(metavar="A,B,C", help="Models; default: the recipe's.")] = None,
    protocols: Annotated[str | None, typer.Option(metavar="A,B", help="Protocols; default: the recipe's.")] = None,
    seeds: Annotated[int | None, number("Seeds of each model, counted from 0.", most=1000)] = None,
    budget_minutes: Annotated[
        float | None, typer.Option(help="Minutes of training of each run.", min=0, show_default="the recipe's updates")
    ] = None,
    updates: Annotated[int | None, number("Updates of each run.", most=10**9)] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Change a configuration value; KEY=A,B,C makes a variant of each."
        ),
    ] = None,
    scale: Annotated[StudyScale | None, typer.Option(help="Data and model size.", show_default="small")] = None,
    out: Annotated[Path, typer.Option(help="Folder for data, runs, table and report.")] = Path("study"),
    jobs: Annotated[int, number("Runs at a time, each on a device of its own.", most=4096)] = 1,
    launcher: Annotated[str, typer.Option(help="local, or slurm to submit the runs.")] = "local",
    device: Device = None,
    plugin: Plugin = None,
    json: Json = False,
) -> None:
    """Models × protocols × settings × seeds at equal cost: one table, mean ± standard deviation over seeds.

    Finished runs are found again and not repeated; started ones resume where they stopped. Writes table.md, table.csv,
    table.json, runs.csv and report/ into --out. The exit code is 1 if a run failed and 3 while something is left to do.

    Example: factformer study kolmogorov --models factformer_plus,fno --seeds 3 --budget-minutes 2 --out study
    """
    from factformer.studies.running import read_study, run_study

    definition = read_study(
        source,
        {
            "data": None if data is None else str(data),
            "models": _names(models),
            "protocols": _names(protocols),
            "seeds": seeds,
            "budget_minutes": budget_minutes,
            "updates": updates,
            "scale": None if scale is None else scale.value,
            "plugins": [str(path.resolve()) for path in plugin or []] or None,
        },
        assignments or [],
    )
    summary = run_study(
        definition,
        out,
        jobs=jobs,
        launcher=launcher,  # type: ignore[arg-type]
        device=device,
        report=say,
        live=jobs == 1 and definition.scale != "tiny",
    )
    if json:
        print_json(summary.to_dict())
    else:
        print_table(summary.table())
        tell(f"written to {out}")
    if summary.words & {"stopped", "no time"}:
        raise typer.Exit(3)
    if "failed" in summary.words:
        raise typer.Exit(1)


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",")]
