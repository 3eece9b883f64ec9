"""What commands share in taking options and in answering: progress, tables for people, JSON for machines."""

from __future__ import annotations

import json as json_module
import math
import shutil
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

Source = Annotated[str, typer.Argument(metavar="RUN|BUNDLE", help="Run folder, bundle folder, or zoo name.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for a machine.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda or another, such as mps; default: a GPU, if any.")]
Domain = Annotated[int, typer.Option(help="Parts that the grid of a sample is cut into.", min=1, max=4096)]
Devices = Annotated[
    int | None,
    typer.Option(help="One for each part of --domain (default), or 1: parts in turn.", min=1, max=1024),
]
TrainingDevices = Annotated[
    int | None,
    typer.Option(help="GPUs per node, or CPU processes.", show_default="1, or those of --domain", min=1, max=1024),
]
Precision = Annotated[str, typer.Option(help="32-true or bf16-mixed.")]
Split = Annotated[str | None, typer.Option(help="Which split to use.", show_default="test")]
Assignments = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a configuration value.")
]
MOST = 10**6
"""The largest number that an option takes for a count, unless it says another."""


def number(help: str, *, least: int = 1, most: int = MOST, **options: Any) -> Any:
    """An option that takes a whole number between bounds: what lies beyond is a slip, found before anything begins."""
    return typer.Option(help=help, min=least, max=most, **options)


def enough_devices(devices: int | None, domain: int, num_nodes: int) -> int:
    """Devices of each node: as many as were asked for, or the fewest with which ``domain`` processes share a grid."""
    return domain // math.gcd(domain, num_nodes) if devices is None else devices


def array(option: str, help: str, metavar: str = "NAME=ARRAY") -> Any:
    """An option, to be given any number of times, that names an array of a file."""
    return typer.Option(option, metavar=metavar, help=help)


Names = list[str] | None
Fields = Annotated[Names, array("--field", "Array that holds a field, or its components: u=Vx,Vy.", "FIELD=ARRAY")]
Static = Annotated[Names, array("--static", "Field known once per trajectory: an array, or a file of one.")]
Forcing = Annotated[Names, array("--forcing", "Field known for every frame, past and future.")]
Parameter = Annotated[Names, array("--parameter", "Number of each trajectory: an array, or one number.")]
Mask = Annotated[
    str | None, typer.Option("--mask", metavar="ARRAY", help="Which points lie inside the domain: 1, and 0 outside.")
]
Layout = Annotated[
    str | None, typer.Option(help="Axes of the arrays by letter: n trajectory, t frame, x y z w, c channel.")
]


EXAMPLES = {
    "--field": "FIELD=ARRAY, such as density=rho",
    "--static": "NAME=ARRAY, such as depth=bed",
    "--forcing": "NAME=ARRAY, such as inflow=q",
    "--parameter": "NAME=ARRAY or NAME=NUMBER, such as reynolds=80",
}


def named_arrays(option: str, texts: list[str] | None) -> dict[str, str]:
    """What an option that may be repeated says: arrays by name, each name once."""
    from factformer.errors import UserError

    named: dict[str, str] = {}
    for text in texts or []:
        name, _, array = (part.strip() for part in text.partition("="))
        if not name or not array:
            raise UserError(f"{option} is given as {EXAMPLES[option]}; got {text!r}")
        if name in named:
            raise UserError(f"{option} {name}= is given twice, as {named[name]!r} and {array!r}: leave one of them out")
        if option == "--parameter" and array.lower().lstrip("+-") in ("nan", "inf", "infinity"):
            raise UserError(f"{option} {text} is no finite number")
        named[name] = array
    return named


def given_parts(
    static: list[str] | None, forcing: list[str] | None, parameter: list[str] | None, mask: str | None
) -> Any:
    """What the options for parts beside the state say."""
    from factformer.data.formats.parts import Parts

    return Parts(
        named_arrays("--static", static),
        named_arrays("--forcing", forcing),
        named_arrays("--parameter", parameter),
        mask,
    )


def _bring(files: list[Path] | None) -> list[Path] | None:
    if files:
        from factformer.plugins import bring_plugins

        bring_plugins(files)
    return files


Plugin = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugin", metavar="FILE", help="One Python file with your own models, PDEs or metrics.", callback=_bring
    ),
]
"""A command that takes it finds what the files hold in the catalog."""


@contextmanager
def moving_bar(title: str, unit: str) -> Iterator[Callable[[int, int], None]]:
    """A callback that moves a bar; it appears with the first call that leaves more to do."""
    from factformer.data.generate.progress import ProgressBar

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


def say(message: str) -> None:
    tell(message, err=True)


def tell(message: str, *, err: bool = False) -> None:
    """Print a line; names in it come from files, so that control characters are shown and not obeyed."""
    from factformer._support.text import printable

    typer.echo(printable(message), err=err)


def counted(number: int, one: str, several: str = "") -> str:
    """Such as ``1 frame`` and ``2 frames``."""
    return f"{number} {one if number == 1 else several or one + 's'}"


def columns() -> int:
    """The width of answers: ``$COLUMNS``, or that of the terminal, or 80."""
    return shutil.get_terminal_size().columns


def folded(text: str, width: int) -> list[str]:
    """The lines of ``text``, of at most ``width`` characters where no word, such as a path, is longer."""
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)


def tell_folded(text: str) -> None:
    """Print a sentence over as many lines as it takes."""
    for line in folded(text, columns()):
        tell(line)


def tell_entries(entries: Mapping[str, str]) -> None:
    """Print names with what they are; long lines go on below their beginning."""
    width = max((len(name) for name in entries), default=0)
    for name, words in entries.items():
        lines = folded(words, max(20, columns() - width - 5))
        tell(f"  {name:<{width}}  {lines[0] if lines else ''}")
        for line in lines[1:]:
            tell(f"  {'':<{width}}  {line}")


def with_shorthands(assignments: list[str] | None, shorthands: Mapping[str, Any]) -> list[str]:
    """``--set`` and the options that stand for a setting; raises where both give one and differ."""
    from factformer.config import assignment
    from factformer.errors import UserError
    from factformer.training.experiment.definition import assigned

    changes = list(assignments or [])
    for key, value in shorthands.items():
        if value is None:
            continue
        said, option = assigned(key, changes), assignment(key, value)
        if said is not None and said != assigned(key, [option]):
            raise UserError(f"--set {key}={said} and the option for it say different things: give one of them")
        changes.append(option)
    return changes


def print_json(values: Any) -> None:
    from factformer._support.documents import finite

    typer.echo(json_module.dumps(finite(values), indent=2, allow_nan=False))


def print_table(table: Any) -> None:
    """Print a table in the width of answers, its columns one below the other where they do not fit side by side."""
    from rich.console import Console

    for part in table.within(columns()):
        # A cell that is wider than the terminal is not cut.
        least = sum(part.size(column) + len("│  ") for column in part.columns) + len("│")
        console = Console(width=max(columns(), least))
        console.print(part.to_rich(console.width))
