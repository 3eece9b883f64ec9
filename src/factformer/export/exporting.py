"""`export`: write a program, hold it against the surrogate on fresh inputs, and keep it only if it agrees."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import json
import shutil
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from factformer import __version__
from factformer._support.files import clean_scratch_folders, explained, require_free, scratch_folder, write_together
from factformer.batch import Batch
from factformer.bundle import load
from factformer.config import unknown_name
from factformer.errors import UserError
from factformer.evaluation.cost import random_batch
from factformer.evaluation.timing import resolve_device
from factformer.export import program
from factformer.models._backbone import Backbone
from factformer.surrogate import Surrogate

Format = Literal["torch", "onnx", "aoti"]
SUFFIXES: dict[str, str] = {"torch": ".pt2", "onnx": ".onnx", "aoti": ".pt2"}
HELPERS = {
    "torch": "factformer.export.helpers.rollout_torch",
    "onnx": "factformer.export.helpers.rollout_onnx",
    "aoti": "factformer.export.helpers.rollout_torch",
}
LOADERS = {"aoti": ("torch.export.load(path).module()", "torch._inductor.aoti_load_package(str(path))")}
"""What another format has in place of a line of its helper."""
TOLERANCE = 1e-4
"""Relative difference to the surrogate, of each sample and channel, up to which an export counts as right."""
TRACED, CHECKED, SEED = 2, (1, 3), 4711
"""Numbers of samples that a graph is traced with and checked with, and the seed of what it is checked on."""


@dataclass(frozen=True)
class Exported:
    """What `export` wrote: the program, its roll-out, what it takes and gives, and how well it agrees."""

    path: Path
    helper: Path
    format: str
    opset: int | None
    inputs: dict[str, tuple[int | str, ...]]
    output: tuple[int | str, ...]
    num_bytes: int
    error: float
    """The largest relative difference to the surrogate on fresh inputs."""

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "path": str(self.path), "helper": str(self.helper)}


def export(
    bundle: str | Path | Surrogate,
    out: str | Path,
    format: Format | None = None,
    *,
    num_steps: int | None = None,
    device: str | torch.device = "cpu",
    models: Iterable[type[Backbone]] = (),
    overwrite: bool = False,
) -> Exported:
    """Write a surrogate to ``out`` as a program that runs without factformer, and its roll-out beside it.

    ``format`` is ``torch`` (``.pt2``, the default of that ending), ``onnx`` (``.onnx``) or ``aoti`` (``.pt2``, machine
    code of this computer). The number of samples is open, the grid is the problem's, values are float32 in physical
    units. One call predicts ``num_steps`` frames, by default as many as the surrogate was built for. Programs of
    PyTorch run on ``device``, where their tensors must be; an ONNX file runs wherever its runtime does. What is written
    is held against the surrogate on fresh inputs; where it differs by more than 1e-4 nothing is kept.
    """
    out = Path(out)
    format = _format(out, format)
    helper = out.with_name(f"{out.name.replace('.', '_')}_rollout.py")
    if format == "onnx":
        program.require_packages()
    if format == "onnx" and str(device) != "cpu":
        raise UserError(f"an ONNX file runs wherever its runtime does; device={device} is for torch and aoti")
    device = resolve_device(device)
    surrogate = (bundle if isinstance(bundle, Surrogate) else load(bundle, models=models)).eval()
    home = next(surrogate.parameters()).device
    steps = surrogate.marching_steps if num_steps is None else num_steps
    if not 1 <= steps <= surrogate.marching_steps:
        raise UserError(f"one call of this surrogate predicts 1 to {surrogate.marching_steps} frames, got {steps}")
    missing = [parent for parent in out.parents if not parent.exists()]
    with explained(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        clean_scratch_folders(out)
        require_free([out, helper], overwrite=overwrite)
        folder = scratch_folder(out)
    try:
        surrogate.to(device)
        written, beside = folder / out.name, folder / helper.name
        sample = fresh_batch(surrogate, TRACED, steps, SEED)
        traced = program.trace(program.plain_call(surrogate, steps), sample)
        inputs = {name: ("batch", *part.shape[1:]) for name, part in zip(sample.names, sample.tensors, strict=True)}
        output: tuple[int | str, ...] = (
            "batch",
            steps,
            *surrogate.problem.grid.shape,
            surrogate.problem.num_state_channels,
        )
        information = json.dumps(
            {
                "factformer": __version__,
                "problem": surrogate.problem.to_dict(),
                "model": surrogate.config.name,
                "inputs": inputs,
                "output": output,
                "provenance": surrogate.provenance,
            }
        )
        if format == "torch":
            program.write_torch(traced, written, information)
        elif format == "onnx":
            program.write_onnx(traced, written, information, surrogate.config.name)
        else:
            program.write_aoti(traced, written)
            program.require_loadable(written)
        beside.write_text(helper_source(format, steps), encoding="utf-8")
        error = largest_error(surrogate, written, beside, steps)
        if not error <= TOLERANCE:
            raise UserError(
                f"the exported program differs from the surrogate by {error:.1e}, more than {TOLERANCE:.0e}, and is "
                "not kept; try another --format"
            )
        # Copied, as a program that is loaded keeps its file open on some systems.
        write_together({path: partial(shutil.copyfile, folder / path.name) for path in (out, helper)})
    finally:
        surrogate.to(home)
        shutil.rmtree(folder, ignore_errors=True)
        for parent in missing:  # one that holds the program stays
            with contextlib.suppress(OSError):
                parent.rmdir()
    opset = program.OPSET if format == "onnx" else None
    return Exported(out, helper, format, opset, inputs, output, out.stat().st_size, error)


def fresh_batch(surrogate: Surrogate, size: int, num_steps: int, seed: int) -> Batch:
    """White noise with the statistics of the data, in float32, where the surrogate is; no part is left out."""
    generator = torch.Generator().manual_seed(seed)
    batch = random_batch(surrogate, size, num_steps, generator).to(torch.float32)
    if batch.mask is not None:
        batch = batch._replace(mask=torch.rand(batch.mask.shape, generator=generator) > 0.2)
    return batch.to(next(surrogate.parameters()).device)


def helper_source(format: str, num_steps: int) -> str:
    """The text of the roll-out for programs of ``format`` that predict ``num_steps`` frames a call."""
    spec = importlib.util.find_spec(HELPERS[format])
    assert spec is not None and spec.origin is not None
    text = Path(spec.origin).read_text(encoding="utf-8")
    for old, new in [
        ("NUM_STEPS = 1 ", f"NUM_STEPS = {num_steps} "),
        *([LOADERS[format]] if format in LOADERS else []),
    ]:
        assert text.count(old) == 1
        text = text.replace(old, new)
    return text


def read_helper(path: Path) -> ModuleType:
    """A roll-out that `export` wrote, as a module."""
    spec = importlib.util.spec_from_file_location(inspect.getmodulename(path) or "rollout", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def largest_error(surrogate: Surrogate, path: Path, helper: Path, num_steps: int) -> float:
    """How far the program in ``path``, called by its roll-out, is from the surrogate on inputs it has not seen."""
    rollout = read_helper(helper)
    model = rollout.load(path)
    errors = []
    for size in CHECKED:
        batch = fresh_batch(surrogate, size, num_steps, SEED + size)
        with torch.no_grad():
            expected = surrogate(batch, num_steps).double().cpu()
        # Views into larger arrays, as users pass them: machine code that ignores strides would read other numbers.
        views = {
            name: torch.stack([part] * 2, dim=1)[:, 0] for name, part in batch._asdict().items() if part is not None
        }
        arrays = {name: part if path.suffix == ".pt2" else part.numpy() for name, part in views.items()}
        found = torch.as_tensor(rollout.rollout(model, num_steps, **arrays)).double().cpu()
        errors.append(relative_difference(found, expected))
    return max(errors)


def relative_difference(found: Tensor, expected: Tensor) -> float:
    """The largest relative L2 difference of a sample and channel; infinite where shapes differ or numbers are not."""
    if found.shape != expected.shape or not bool(found.isfinite().all()):
        return float("inf")
    axes = tuple(range(1, expected.ndim - 1))
    norm = expected.pow(2).sum(axes).sqrt()
    size = torch.where(norm > 0, norm, 1.0)
    return float(((found - expected).pow(2).sum(axes).sqrt() / size).max())


def _format(out: Path, format: str | None) -> Format:
    if format is None:
        format = next((name for name, suffix in SUFFIXES.items() if suffix == out.suffix), "torch")
    if format not in get_args(Format):
        raise unknown_name("format", format, get_args(Format))
    if out.suffix != SUFFIXES[format]:
        raise UserError(f"a program of the format {format} is written as {SUFFIXES[format]}, got {out.name!r}")
    return format  # type: ignore[return-value]
