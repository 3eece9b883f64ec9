"""Commands that bring surrogates to others: export."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from factformer.cli._answers import Json, Plugin, Source, number, print_json, tell


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
    plugin: Plugin = None,
    overwrite: Annotated[bool, typer.Option(help="Replace existing output files.")] = False,
    json: Json = False,
) -> None:
    """Write a surrogate as a program that runs without factformer, and a roll-out in twenty lines beside it.

    The program is held against the surrogate on fresh inputs before it is kept.

    Example: factformer export runs/demo --format onnx --out flow.onnx
    """
    from factformer._support.files import size_text
    from factformer.export import export as export_surrogate

    done = export_surrogate(source, out, None if format is None else format.value, num_steps=steps, overwrite=overwrite)
    if json:
        print_json(done.to_dict())
        return
    how = f"ONNX, opset {done.opset}" if done.opset else {"torch": "torch.export", "aoti": "AOTInductor"}[done.format]
    tell(f"{done.path}: {how}, {size_text(done.num_bytes)}; differs from the surrogate by {done.error:.1e}")
    for name, shape in {**done.inputs, "frames": done.output}.items():
        tell(f"  {'out' if name == 'frames' else 'in':<3}  {name} ({', '.join(map(str, shape))})")
    tell(f"roll-out without factformer: {done.helper}")
