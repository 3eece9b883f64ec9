"""Commands that make data: generate, convert."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from factformer.cli._answers import (
    Fields,
    Forcing,
    Json,
    Layout,
    Mask,
    Parameter,
    Plugin,
    Static,
    counted,
    given_parts,
    named_arrays,
    number,
    print_json,
    tell,
)


def generate(
    problem: Annotated[str, typer.Argument(help="Problem of the catalog; `factformer list` shows them.")],
    out: Annotated[Path, typer.Option(help="Folder for train.hdf5, valid.hdf5 and test.hdf5.")],
    preset: Annotated[str, typer.Option(help="Size of the dataset: tiny, small (a CPU) or paper.")] = "small",
    trajectories: Annotated[int | None, number("Trajectories of each split.")] = None,
    resolution: Annotated[int | None, number("Stored points along each axis.", least=2)] = None,
    simulation_resolution: Annotated[int | None, number("The solver's points.", least=2)] = None,
    split: Annotated[list[str] | None, typer.Option(help="Only this split; may be repeated.")] = None,
    seed: Annotated[int, number("Seed of the dataset.", least=0, most=2**63 - 1)] = 0,
    device: Annotated[str, typer.Option(help="Device to solve on, such as cpu or cuda.")] = "cpu",
    dtype: Annotated[str, typer.Option(help="Precision of the solver: float32 or float64.")] = "float32",
    batch_size: Annotated[int | None, number("Trajectories solved at once.")] = None,
    devices: Annotated[int, number("Processes of this computer, one for each GPU.", most=1024)] = 1,
    domain: Annotated[int, number("Processes among which the grid of a trajectory is cut.", most=4096)] = 1,
    set: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A parameter of the problem or a value of the preset."),
    ] = None,
    plugin: Plugin = None,
    overwrite: Annotated[bool, typer.Option(help="Replace data of other settings in that folder.")] = False,
    json: Json = False,
) -> None:
    """Solve a problem many times and store the frames, in The Well's layout.

    Interrupted and started again, it resumes where it stopped; finished splits are left as they are.
    Several processes (--devices, or torchrun) share the trajectories; with --domain N of them share the grid of each.

    Example: factformer generate kolmogorov_flow --out data/kolmogorov --preset small
    """
    from factformer.cli._processes import several_processes
    from factformer.data import generate as generate_data

    with several_processes(devices):
        paths = generate_data(
            problem,
            out,
            preset=preset,
            splits=split or None,
            trajectories=trajectories,
            resolution=resolution,
            simulation_resolution=simulation_resolution,
            seed=seed,
            device=device,
            dtype=dtype,
            batch_size=batch_size,
            domain=domain,
            settings=set or [],
            overwrite=overwrite,
            progress=True,
        )
    if os.environ.get("RANK", "0") == "0":
        _tell(paths, json)


def convert(
    file: Annotated[
        Path,
        typer.Argument(help="npy, npz, mat, HDF5 (PDEBench, The Well), NetCDF, zarr, VTK, or a folder of frames."),
    ],
    out: Annotated[Path, typer.Option(help="File to write, or a folder for <split>.hdf5.")],
    problem: Annotated[
        str | None,
        typer.Option(help="Problem of the catalog or a YAML file; files that describe themselves need none."),
    ] = None,
    split: Annotated[str | None, typer.Option(help="Split: train, valid or test (default: by --out).")] = None,
    trajectories: Annotated[
        str | None, typer.Option(metavar="N|A:B", help="Only the first N trajectories, or those from A to B.")
    ] = None,
    resolution: Annotated[int | None, number("Keep so many points along each axis.", least=2)] = None,
    field: Fields = None,
    static: Static = None,
    forcing: Forcing = None,
    parameter: Parameter = None,
    mask: Mask = None,
    layout: Layout = None,
    set: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A value of the problem: frame_dt=0.1, parameters.drag=0."),
    ] = None,
    resample_time: Annotated[
        bool, typer.Option("--resample-time", help="Interpolate frames at uneven times to even ones.")
    ] = False,
    allow_external: Annotated[
        bool, typer.Option("--allow-external", help="Read HDF5 files that lead to other files, if you trust them.")
    ] = False,
    plugin: Plugin = None,
    overwrite: Annotated[bool, typer.Option(help="Replace an existing file.")] = False,
    json: Json = False,
) -> None:
    """Bring arrays of other programs into our store, with what is known of them.

    Example: factformer convert ns.mat --problem kolmogorov_flow --layout nxyt --out data/train.hdf5
    """
    from factformer.data import convert as convert_file
    from factformer.data.convert import parse_trajectories

    path = convert_file(
        file,
        out,
        problem,
        split=split,
        fields=named_arrays("--field", field),
        parts=given_parts(static, forcing, parameter, mask),
        layout=layout,
        trajectories=slice(None) if trajectories is None else parse_trajectories(trajectories),
        resolution=resolution,
        settings=set or [],
        resample_time=resample_time,
        allow_external=allow_external,
        overwrite=overwrite,
        progress=True,
    )
    _tell([path], json)


def _tell(paths: list[Path], json: bool) -> None:
    from factformer.data.layout import AXIS_NAMES
    from factformer.data.store import open_dataset

    entries: list[dict[str, Any]] = []
    for path in paths:
        data = open_dataset(path)
        grid = data.problem.grid
        axes = [
            "periodic" if wraps else points if grid.is_even(m) else "uneven"
            for m, (wraps, points) in enumerate(zip(grid.periodic, grid.points, strict=True))
        ]
        masks = (data.read([index], part="mask") for index in range(data.num_trajectories * data.problem.masked))
        inside = [float(mask.float().mean()) for mask in masks]
        entries.append(
            {
                "path": str(path),
                "problem": data.problem.name,
                "split": data.split,
                "trajectories": data.num_trajectories,
                "asked": data.provenance.get("trajectories", ""),
                "frames": data.num_frames,
                "grid": list(grid.shape),
                "axes": axes,
                "boundary": data.problem.boundary,
                "extent": list(grid.extent),
                "frame_dt": data.problem.frame_dt,
                "layout": data.provenance.get("layout", {}),
                "units": data.provenance.get("units", {}),
                "dimensions": data.provenance.get("dimensions", {}),
                "overruled": data.provenance.get("overruled", ""),
                "overruled_box": data.provenance.get("overruled_box", ""),
                "resampled": data.provenance.get("resampled", ""),
                "assumed": data.provenance.get("assumed", []),
                "left_out": data.provenance.get("left_out", []),
                "fields": [item.name for item in data.problem.state],
                "static": [item.name for item in data.problem.static],
                "forcing": [item.name for item in data.problem.forcing],
                "parameters": list(data.problem.parameters),
                "masked": data.problem.masked,
                "inside": sum(inside) / len(inside) if inside else 1.0,
                "fingerprint": data.fingerprint,
            }
        )
    if json:
        print_json({"files": entries})
        return
    for entry in entries:
        size = " x ".join(map(str, entry["grid"]))
        held = counted(entry["trajectories"], "trajectory", "trajectories")
        if entry["trajectories"] < _num_asked(entry["asked"]):
            held += f" (all there are of {entry['asked']})"
        what = f"{held} of {counted(entry['frames'], 'frame')}"
        ends = "" if entry["boundary"] == "periodic" else f"; boundary {entry['boundary']}"
        kinds = ", ".join(f"{axis} {kind}" for axis, kind in zip(AXIS_NAMES, entry["axes"], strict=False))
        where = f"{size} ({kinds}{ends})"
        assumed = f"; assumed, --set changes it: {', '.join(entry['assumed'])}" if entry["assumed"] else ""
        box = " x ".join(f"{length:.4g}" for length in entry["extent"])
        unit = entry["units"].get("time", "")
        apart = f", frames {entry['frame_dt']:g} apart{f' ({unit})' if unit else ''}" if entry["frames"] > 1 else ""
        orders = {name: entry["dimensions"].get(name) or order for name, order in entry["layout"].items()}
        read = "".join(f", {name} read as {order}" for name, order in orders.items())
        setting = f"; box {box}{apart}{read}" + (f"; {entry['resampled']}" if entry["resampled"] else "")
        setting += f"; frame_dt as you say, the file holds {entry['overruled']}" if entry["overruled"] else ""
        box_of_file = entry["overruled_box"]
        setting += f"; box as you say, the file's coordinates span {box_of_file}" if box_of_file else ""
        left_out = f"; left out: {', '.join(entry['left_out'])}" if entry["left_out"] else ""
        beside = [f"{part} {', '.join(entry[part])}" for part in ("static", "forcing", "parameters") if entry[part]]
        beside += [f"a mask: {100 * entry['inside']:.3g} % of points inside"] if entry["masked"] else []
        known = f" with {'; '.join(beside)}" if beside else ""
        told = f"{entry['split']} split, {what}, {', '.join(entry['fields'])} on {where}{known}"
        tell(f"{entry['path']}: {told}{assumed}{left_out}{setting}")


def _num_asked(text: str) -> int:
    """How many trajectories a range such as ``100:120`` asks for; 0 where it has no end."""
    first, _, last = text.partition(":")
    return int(last) - int(first or 0) if last else 0
