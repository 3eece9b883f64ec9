"""Commands that bring surrogates to others, and theirs here: export, zoo."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from factformer.cli._answers import Json, Plugin, Source, moving_bar, number, print_json, say, tell


class Format(StrEnum):
    """What a program is run by."""

    torch = "torch"
    onnx = "onnx"
    aoti = "aoti"


def export(
    source: Source,
    out: Annotated[Path, typer.Option(help="File to write: .pt2 for torch and aoti, .onnx.")],
    format: Annotated[
        Format | None,
        typer.Option(help="torch.export, ONNX, or machine code by AOTInductor.", show_default="by the ending of --out"),
    ] = None,
    steps: Annotated[int | None, number("Frames that one call predicts; default: as many as it was built for.")] = None,
    device: Annotated[
        str, typer.Option(help="Where a program of PyTorch runs, such as cuda; ONNX runs anywhere.")
    ] = "cpu",
    plugin: Plugin = None,
    overwrite: Annotated[bool, typer.Option(help="Replace existing output files.")] = False,
    json: Json = False,
) -> None:
    """Write a surrogate as a program that runs without factformer, and a roll-out in twenty lines beside it.

    The program is held against the surrogate on fresh inputs before it is kept.

    Example: factformer export runs/demo --format onnx --out flow.onnx
    """
    from factformer._support.files import size_text
    from factformer.export.exporting import export as export_surrogate

    done = export_surrogate(
        source,
        out,
        None if format is None else format.value,
        num_steps=steps,
        device=device,
        overwrite=overwrite,
    )
    if json:
        print_json(done.to_dict())
        return
    how = f"ONNX, opset {done.opset}" if done.opset else {"torch": "torch.export", "aoti": "AOTInductor"}[done.format]
    tell(f"{done.path}: {how}, {size_text(done.num_bytes)}; differs from the surrogate by {done.error:.1e}")
    for name, shape in {**done.inputs, "frames": done.output}.items():
        tell(f"  {'out' if name == 'frames' else 'in':<3}  {name} ({', '.join(map(str, shape))})")
    tell(f"roll-out without factformer: {done.helper}")


zoo = typer.Typer(
    help="Trained bundles by name: list, fetch and check them.",
    epilog="Example: factformer zoo list",
    rich_markup_mode=None,
)


@zoo.command("list")
def list_zoo(json: Json = False) -> None:
    """Bundles of this computer and of the index, and where each of them is.

    Example: factformer zoo list
    """
    from factformer._support.files import size_text
    from factformer._support.text import shortened
    from factformer.zoo.lookup import contents

    found = contents(say)
    if json:
        print_json([_row(item) for item in found])
        return
    width = max((len(item.name) for item in found), default=0)
    for item in found:
        version, size = (f"v{item.entry.version}", size_text(item.entry.size)) if item.entry else ("", "")
        tell(f"{item.name:<{width}}  {version:<5}  {size:>8}  {item.state}")
        if item.entry:
            tell(f"  {shortened(item.entry.card, 76)}")
    if not found:
        tell("no bundle here, and none in the index of the zoo")


@zoo.command("pull")
def pull_bundle(
    name: Annotated[str, typer.Argument(help="Name of a bundle in the index; see `factformer zoo list`.")],
    json: Json = False,
) -> None:
    """Fetch a bundle with its checksums; one that was cut off is resumed.

    Example: factformer zoo pull kolmogorov-128
    """
    from factformer.bundle import load
    from factformer.zoo.lookup import pull

    lines: list[str] = []
    with moving_bar(f"fetching {name}", "bytes") as progress:
        path = pull(name, progress=progress, say=lines.append)
    for line in lines:
        load(path)  # by the checksums of its own, where there may be none of the index
        say(line)
    print_json({"name": name, "path": str(path)}) if json else tell(f"{name}: {path}")


@zoo.command("verify")
def verify_bundles(
    names: Annotated[list[str] | None, typer.Argument(help="Names; default: all that are here.")] = None,
    json: Json = False,
) -> None:
    """Hold the bundles of this computer against the checksums of the index, and load them.

    Example: factformer zoo verify
    """
    from factformer.config import unknown_name
    from factformer.zoo.lookup import contents

    known = {item.name: item for item in contents(say) if item.path is not None}
    for name in names or []:
        if name not in known:
            raise unknown_name("bundle", name, known)
    results = {name: _verified(known[name]) for name in names or known}
    if json:
        print_json(results)
    else:
        width = max((len(name) for name in results), default=0)
        for name, words in results.items():
            tell(f"{name:<{width}}  {words}")
    if any(words.startswith("damaged") for words in results.values()):
        raise typer.Exit(1)


def _verified(item: Any) -> str:
    from factformer.bundle import load
    from factformer.errors import UserError
    from factformer.zoo.lookup import damage

    if item.entry is not None and (words := damage(item.path, item.entry)):
        return f"damaged, or not version {item.entry.version}: {words}"
    try:
        load(item.path)
    except UserError as error:
        return f"damaged: {error}"
    return "ok" if item.entry else "ok by its own checksums; not in the index"


def _row(item: Any) -> dict[str, Any]:
    entry = item.entry
    return {
        "name": item.name,
        "state": item.state,
        "path": None if item.path is None else str(item.path),
        "version": entry and entry.version,
        "size": entry and entry.size,
        "card": entry and entry.card,
    }
