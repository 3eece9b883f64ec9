"""Commands to look around and to use what is trained: list, demo, rollout."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from factformer._support.run_names import BUNDLE
from factformer.cli._answers import (
    Device,
    Devices,
    Domain,
    Fields,
    Forcing,
    Json,
    Layout,
    Mask,
    Parameter,
    Plugin,
    Precision,
    Static,
    given_parts,
    named_arrays,
    number,
    print_json,
    say,
    tell,
    tell_entries,
)


def show_version(wanted: bool) -> None:
    if wanted:
        from factformer import __version__

        tell(__version__)
        raise typer.Exit


def version_option(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=show_version, is_eager=True)
    ] = False,
) -> None:
    """Learn fast surrogates of partial differential equations on grids."""


def list_contents(plugin: Plugin = None, json: Json = False) -> None:
    """Problems, models, recipes, bundles of the zoo, and runs in this folder and in ./runs.

    Example: factformer list
    """
    from factformer import catalog
    from factformer.zoo import lookup

    contents = {
        "problems": catalog.summaries("pdes"),
        "models": catalog.summaries("models"),
        "recipes": catalog.summaries("recipes"),
        "bundles": {name: str(path) for name, path in {**lookup.fetched(), **lookup.installed()}.items()},
        "runs": {path.parent.name: str(path) for path in _run_bundles(Path.cwd())},
    }
    if json:
        print_json(contents)
        return
    for title, entries in contents.items():
        typer.secho(title, bold=True)
        tell_entries(entries)
        if not entries:
            tell("  none yet: `factformer train` makes one")


def _run_bundles(folder: Path) -> list[Path]:
    """The bundles of finished runs in a folder and in its ``runs``."""
    found = [*folder.glob(f"*/{BUNDLE}/bundle.json"), *folder.glob(f"runs/*/{BUNDLE}/bundle.json")]
    return sorted(path.parent.relative_to(folder) for path in found)


def demo(
    out: Annotated[Path, typer.Option(help="Folder for data, run and report.")] = Path("demo"),
    updates: Annotated[int, number("Training updates.")] = 1600,
    overwrite: Annotated[bool, typer.Option(help="Replace an earlier demo in that folder.")] = False,
    json: Json = False,
) -> None:
    """The whole path on a small problem, on a CPU: simulate, train, evaluate, report.

    Example: factformer demo --out demo
    """
    from factformer.demo import run_demo

    page = run_demo(out, updates=updates, overwrite=overwrite, say=say if json else tell)
    if json:
        print_json({"data": str(out / "data"), "run": str(out / "run"), "page": str(page)})
    else:
        tell(f"report: {page}")


def rollout(
    bundle: Annotated[str, typer.Argument(help="Folder of a bundle or run, or the name of a bundle in the zoo.")],
    input: Annotated[Path, typer.Option(help="Context frames ([batch,] frame, *grid, channel): npy, npz, mat, HDF5.")],
    frames: Annotated[int, number("Number of frames to predict.")],
    out: Annotated[Path, typer.Option(help="File for the predicted frames: .npy or .npz.")],
    start: Annotated[
        int | None,
        number(
            "First context frame, counted from 0.", least=0, show_default="last frames of arrays, first of a dataset"
        ),
    ] = None,
    field: Fields = None,
    static: Static = None,
    forcing: Forcing = None,
    parameter: Parameter = None,
    mask: Mask = None,
    layout: Layout = None,
    set: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A parameter of all samples: parameters.reynolds=800."),
    ] = None,
    animate: Annotated[Path | None, typer.Option(help="Also write an animated GIF of the first sample.")] = None,
    device: Device = None,
    precision: Precision = "32-true",
    domain: Domain = 1,
    devices: Devices = None,
    plugin: Plugin = None,
    overwrite: Annotated[bool, typer.Option(help="Replace existing output files.")] = False,
    json: Json = False,
) -> None:
    """Predict the frames that follow the given ones, in physical units.

    Example: factformer rollout runs/demo/bundle --input context.npy --frames 16 --out prediction.npy
    """
    from factformer.cli._processes import several_processes
    from factformer.prediction import predict_file
    from factformer.training.cut_predictions import Sharing

    result = predict_file(
        bundle,
        input,
        frames,
        out,
        start=start,
        fields=named_arrays("--field", field),
        layout=layout,
        parts=given_parts(static, forcing, parameter, mask),
        parameters=_set_parameters(set or []),
        animation=animate,
        device=device,
        precision=precision,
        sharing=Sharing(domain, devices, device, several_processes),
        overwrite=overwrite,
        progress=True,
    )
    if json:
        print_json({**asdict(result), "out": str(result.out)})
        return
    after = f", continued after {result.after}" if result.after else ""
    other = f"; {result.other_grid}" if result.other_grid else ""
    apart = "" if result.frame_dt is None else f", {result.frame_dt:g} apart"
    tell(f"{result.out}: frames {tuple(result.shape)} of {', '.join(result.fields)}{apart}{after}{other}")
    if result.other_parameters:
        tell(f"other data than it was trained on: {result.other_parameters}")


def _set_parameters(assignments: list[str]) -> dict[str, Any]:
    """``["parameters.reynolds=800"]`` as a mapping: nothing else can be set in a roll-out."""
    from factformer.config import apply_overrides, unknown_name

    found = apply_overrides({"parameters": {}}, assignments)
    for name in found:
        if name != "parameters":
            raise unknown_name("setting of a roll-out", name, ["parameters.NAME"])
    parameters: dict[str, Any] = found["parameters"]
    return parameters
