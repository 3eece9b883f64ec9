"""The command that says what a training takes before it is begun: plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from factformer.cli._answers import (
    Assignments,
    Json,
    Plugin,
    TrainingDevices,
    enough_devices,
    number,
    print_json,
    tell,
    with_shorthands,
)

WIDTH = 80


def plan(
    recipe: Annotated[
        str | None,
        typer.Argument(help="A recipe (see `factformer list`), or a config.yaml; not needed with --data."),
    ] = None,
    scale: Annotated[str | None, typer.Option(help="small (default) or paper.", show_default=False)] = None,
    data: Annotated[Path | None, typer.Option(help="Dataset to train on; a recipe needs none.")] = None,
    grid: Annotated[
        str | None, typer.Option(help="Points per axis: 512, or 512x512x256; default: those of the data.")
    ] = None,
    batch: Annotated[int | None, number("Windows per update on all devices together.")] = None,
    precision: Annotated[str | None, typer.Option(help="32-true or bf16-mixed; default: the recipe's.")] = None,
    checkpointing: Annotated[
        bool, typer.Option("--checkpointing", help="Recompute layers in the backward pass.")
    ] = False,
    devices: TrainingDevices = None,
    num_nodes: Annotated[int, number("Computers that train together.", most=100_000)] = 1,
    strategy: Annotated[str, typer.Option(help="auto, ddp or fsdp.")] = "auto",
    domain: Annotated[int, number("Processes among which the grid of a sample is cut.", most=4096)] = 1,
    memory: Annotated[
        str | None, typer.Option(help="Memory of a device, such as 80GB: says whether it fits and what helps.")
    ] = None,
    on: Annotated[
        str, typer.Option(help="Device the time is predicted for: h200, h100, a100, rtx4090, or cpu, measured now.")
    ] = "h200",
    bandwidth: Annotated[
        str | None, typer.Option(help="Bytes of its memory per second, such as 2TB.", show_default="the device's")
    ] = None,
    rate: Annotated[
        float | None, typer.Option(help="Its TFLOP/s in this precision.", min=1e-6, show_default="the device's")
    ] = None,
    link: Annotated[
        str | None,
        typer.Option(help="Bytes per second out of a device, within a computer.", show_default="the device's"),
    ] = None,
    network: Annotated[
        str | None,
        typer.Option(help="Bytes per second out of a device, between computers.", show_default="the device's"),
    ] = None,
    assignments: Assignments = None,
    plugin: Plugin = None,
    json: Json = False,
) -> None:
    """Count what an update takes, without running it: memory, arithmetic, bytes sent, time, and what fits.

    Example: factformer plan turbulence --grid 128 --devices 8 --domain 4 --memory 80GB
    """
    import math
    from dataclasses import replace

    from factformer import recipes
    from factformer.errors import UserError
    from factformer.training.experiment.definition import assigned
    from factformer.training.experiment.options import choose_experiment
    from factformer.training.footprint.advice import fits, largest_batch, suggestions
    from factformer.training.footprint.counted import NotCountableError, count
    from factformer.training.footprint.devices import find_device
    from factformer.training.footprint.predicted import predict_update
    from factformer.training.footprint.sharing import Share
    from factformer.training.launch import described_problem
    from factformer.training.loop.machine import Machine

    room = None if memory is None else parse_size("--memory", memory)
    speeds = {"bandwidth": bandwidth, "link": link, "network": network}
    given: dict[str, Any] = {key: parse_size(f"--{key}", text) for key, text in speeds.items() if text is not None}
    shorthands = {
        "data.path": data,
        "training.batch_size": batch,
        "training.precision": precision,
        "model.checkpointing": True if checkpointing else None,
    }
    changes = with_shorthands(assignments, shorthands)
    if recipe is None and assigned("data.path", changes) is None:
        raise UserError(
            "say which recipe to plan, e.g. `factformer plan demo` (`factformer list` shows them), or give --data DIR"
        )
    experiment, _ = choose_experiment(recipes.build, recipe, scale, changes, None, False)
    devices = enough_devices(devices, domain, num_nodes)
    machine = Machine("cpu", devices, num_nodes, strategy, domain)  # type: ignore[arg-type]
    machine.check_counts()
    share = Share(machine.num_processes, domain, "fsdp" if strategy == "fsdp" else "ddp", gpu=on != "cpu")
    usual = experiment.training.batch_size
    evenly = share.groups * experiment.training.accumulate
    if assigned("training.batch_size", changes) is None and usual % evenly:
        batch_size = evenly * math.ceil(usual / evenly)
        experiment = experiment.override([f"training.batch_size={batch_size}"])
    problem = described_problem(experiment, None if grid is None else parse_grid(grid))
    try:
        footprint = count(experiment, problem, share)
        answer = _answer(experiment, problem, footprint)
        answer["rounded_up_from"] = None if answer["batch_size"] == usual else usual
        precision_name = experiment.training.precision
        device = find_device(on)
        if rate is not None:
            given["rates"] = {**device.rates, precision_name: 1e12 * rate}
        device = replace(device, **given)
        predicted = predict_update(footprint, device, precision_name, devices)
        answer["predicted"] = {
            "device": device.name,
            "source": device.source,
            "given": sorted("rate" if key == "rates" else key for key in given),
            "execution": predicted.way,
            "seconds_per_update": predicted.total,
            "work_seconds": predicted.work,
            "exchange_seconds": predicted.exchange,
        }
        if room is not None:
            answer["memory_bytes"] = round(room)
            answer["fits"] = fits(footprint.training, room)
            answer["largest_batch_size"] = largest_batch(experiment, problem, share, room)
            helpful = [] if answer["fits"] else suggestions(experiment, problem, share, room)
            answer["suggestions"] = [
                {
                    "options": change.options,
                    "training_bytes": change.footprint.training,
                    "fits": fits(change.footprint.training, room),
                    "same_result": change.same_result,
                }
                for change in helpful
            ]
    except NotCountableError as error:
        raise UserError(f"the model {experiment.model.name!r} cannot be counted without running it: {error}") from error
    if json:
        print_json(answer)
    else:
        _print(answer)


def parse_size(option: str, text: str) -> float:
    """Bytes of ``80``, ``80GB`` or ``80 GiB``; a number alone is in GB."""
    import re

    from factformer.errors import UserError

    units = {"": 1e9, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12, "mib": 2.0**20, "gib": 2.0**30, "tib": 2.0**40}
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if found is None or found[2].lower() not in units or float(found[1]) <= 0:
        raise UserError(f"{option} is a size such as 80GB or 24GiB, got {text!r}")
    return float(found[1]) * units[found[2].lower()]


def parse_grid(text: str) -> tuple[int, ...]:
    """``(512,)`` of ``512``, ``(64, 32)`` of ``64x32``."""
    from factformer.errors import UserError

    try:
        sizes = tuple(int(part) for part in text.lower().split("x"))
    except ValueError:
        sizes = (0,)
    if any(not 2 <= size <= 2**24 for size in sizes):
        raise UserError(f"--grid takes points per axis, such as 512 or 512x512x256; got {text!r}")
    return sizes


def _answer(experiment: Any, problem: Any, footprint: Any) -> dict[str, Any]:
    share = footprint.share
    return {
        "problem": problem.name,
        "model": experiment.model.name,
        "grid": list(problem.grid.shape),
        "part": list(footprint.part),
        "devices": share.devices,
        "domain": share.domain,
        "strategy": share.strategy,
        "precision": experiment.training.precision,
        "batch_size": experiment.training.batch_size,
        "windows_at_once": footprint.windows,
        "parameters": footprint.parameters,
        "training_bytes": footprint.training,
        "execution": "plain" if footprint.fused is None else "fused",
        "plain": {
            "weights": footprint.weights,
            "optimizer": footprint.optimizer,
            "exchange": footprint.exchange,
            "batch": footprint.batch,
            "activations": footprint.activations,
            "total": footprint.plain,
        },
        "fused_bytes": footprint.fused,
        "inference_bytes": footprint.inference,
        "flops_per_update": footprint.flops,
        "sent_bytes_per_update": footprint.sent,
    }


SENT = {
    "gradients": "gradients, to be summed up",
    "weights": "weights, to be gathered",
    "reduce": "sums over the domain",
    "halo": "halos, to neighbours",
    "gather": "fields, to be gathered",
}


def _print(answer: dict[str, Any]) -> None:
    """Lines of a name and a value, at most 80 columns."""
    from factformer._support.files import size_text

    points, part = ("x".join(map(str, answer[key])) for key in ("grid", "part"))
    tell(f"{answer['model']} on {answer['problem']}, {points} points, {answer['precision']}")
    plain = answer["plain"]
    rows: list[tuple[str, str]] = [("parameters", f"{answer['parameters']:,}")]
    if answer["devices"] > 1:
        shared = f"{answer['devices']} devices, {answer['strategy']}"
        rows.append(("shared by", shared if answer["domain"] == 1 else f"{shared}, each grid by {answer['domain']}"))
    if answer["rounded_up_from"] is not None:
        rows.append(("training.batch_size", f"{answer['batch_size']}, rounded up from {answer['rounded_up_from']}"))
    rows += [
        ("windows at once on a device", f"{answer['windows_at_once']} of {part} points"),
        ("weights", size_text(plain["weights"])),
        ("optimiser", size_text(plain["optimizer"])),
        *([("buffers of exchanges", size_text(plain["exchange"]))] if plain["exchange"] else []),
        ("batch", size_text(plain["batch"])),
        ("activations and gradients", size_text(plain["activations"])),
        ("peak of training per device", size_text(plain["total"])),
    ]
    if answer["fused_bytes"] is not None:
        rows.append(("the same on fused kernels", size_text(answer["fused_bytes"])))
    rows += [
        ("peak of a prediction", size_text(answer["inference_bytes"])),
        ("arithmetic per update", f"{answer['flops_per_update']:.3g} floating-point operations"),
    ]
    for kind, size in answer["sent_bytes_per_update"].items():
        rows.append((f"sent: {SENT.get(kind, kind)}", f"{size_text(size)} per device and update"))
    time = answer["predicted"]
    seconds = {"update": time["seconds_per_update"], "work": time["work_seconds"]}
    seconds["exchanges"] = sum(time["exchange_seconds"].values())
    texts = {key: f"{value:.3g} s" if value >= 1 else f"{1e3 * value:.3g} ms" for key, value in seconds.items()}
    rows.append((f"predicted time on {time['device']}", f"{texts['update']} an update, {time['execution']}"))
    if time["exchange_seconds"]:
        rows.append(("of it", f"{texts['work']} work, {texts['exchanges']} exchanges"))
    for name, value in rows:
        tell(f"  {name:<34}{value}")
    if "fits" in answer:
        _print_fit(answer)


def _print_fit(answer: dict[str, Any]) -> None:
    from factformer._support.files import size_text

    room = size_text(answer["memory_bytes"])
    tell(f"{'fits' if answer['fits'] else 'does not fit'} into {room} with 15 % left free")
    largest = answer["largest_batch_size"]
    tell(f"  largest training.batch_size that fits at once: {largest}" if largest else "  not one window fits at once")
    for change in answer["suggestions"]:
        result = "same result" if change["same_result"] else "another result"
        verdict = "fits" if change["fits"] else "does not fit either"
        for line in _wrapped(change["options"]):
            tell(f"  {line}")
        tell(f"      {size_text(change['training_bytes'])}, {verdict}, {result}")


def _wrapped(text: str) -> list[str]:
    import textwrap

    return textwrap.wrap(text, WIDTH - 4, break_long_words=False, break_on_hyphens=False)
