"""Foreign files into our store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from factformer._support.files import clean_leftovers
from factformer.config import unknown_name
from factformer.data.dataset import WORDS, Dataset
from factformer.data.formats.foreign import NO_PARTS, Request, read_request, sources
from factformer.data.formats.parts import Parts
from factformer.data.formats.well_statistics import write_well_statistics
from factformer.data.generate.progress import ProgressBar
from factformer.data.identity import source_state
from factformer.data.layout import Contents, stored_fields, varying_fields
from factformer.data.numbers import Rounding, mask_advice
from factformer.data.splits import SPLITS, SUFFIXES, split_names
from factformer.data.store import StoredDataset
from factformer.data.writer import SplitWriter
from factformer.errors import BlewUp, UserError
from factformer.problem import num_channels

BYTES_AT_A_TIME = 2**28


def convert(
    source: str | Path,
    out: str | Path,
    problem: str | Path | Mapping[str, Any] | None = None,
    *,
    split: str | None = None,
    trajectories: slice = slice(None),
    fields: Mapping[str, str] | None = None,
    parts: Parts = NO_PARTS,
    layout: str | None = None,
    resolution: int | None = None,
    settings: Sequence[str] = (),
    resample_time: bool = False,
    allow_external: bool = False,
    overwrite: bool = False,
    progress: bool = False,
) -> Path:
    """Write a foreign file, or the ``trajectories`` of it, as one split of our store and return its path.

    ``out`` is a file, or a folder for ``<split>.hdf5``; a file or folder called after a split, or a file in a folder
    called so, needs no ``split``. The other arguments are those of `import_dataset`.
    """
    out = Path(out)
    named = _named_split(out, split)
    request = Request(
        Path(source), problem, named, fields or {}, parts, layout, resolution, settings, resample_time, allow_external
    )
    data, given = read_request(request)
    target = out if out.suffix in SUFFIXES else out / f"{data.split}.hdf5"
    chosen = range(*trajectories.indices(data.num_trajectories))
    if not chosen:
        raise UserError(f"no trajectory left: {source} holds {data.num_trajectories}, asked for {_text(trajectories)}")
    origin = {"source": Path(source).name, "trajectories": _text(trajectories)}
    writer = SplitWriter(target, _contents(data, chosen, given, origin), state=source_state(sources(data)))
    try:
        clean_leftovers(target.parent)
        writer.prepare(overwrite=overwrite)
        _copy(data, chosen, writer, Path(source), progress)
    except BlewUp as error:
        bad = f"trajectory {chosen[error.trajectory]} holds NaN or infinite values in {error.what}"
        part = next((part for part in ("static", "forcing", "frame") if part in error.what), "")
        if part:
            part = "state" if part == "frame" else part
            values = data.read([chosen[error.trajectory]], part=part)[0]
            bad += mask_advice(values, data.problem, part, "--mask (mask in Parts)")
        raise UserError(f"{source}: {bad}; mend or leave it out") from None
    finally:
        writer.release()
    if data.split == "train":
        write_well_statistics(target)
    return target


def _copy(data: Dataset, chosen: range, writer: SplitWriter, source: Path, progress: bool) -> None:
    """Write the ``chosen`` trajectories of ``source``, or those that an interrupted run has left to do."""
    parts = ("state", *data.problem.parts)
    rounding = {part: Rounding(f"the {WORDS.get(part, part)} of {source}") for part in parts if part != "mask"}
    try:
        with ProgressBar(f"convert {source.name}", len(chosen), enabled=progress, unit="trajectories") as bar:
            batches = writer.pending(_batch_size(data))
            bar.advance(len(chosen) - sum(len(batch) for batch in batches))
            for batch in batches:
                indices = chosen[batch.start : batch.stop]
                with writer.batch(batch) as output:
                    read = {part: rounding[part].kept(data.read_exact(indices, part=part)) for part in rounding}
                    if "mask" in parts:
                        output.write_mask(data.read_exact(indices, part="mask"))
                    if "static" in read:
                        output.write_static(read["static"])
                    if "parameters" in read:
                        output.write_parameters(read["parameters"])
                    for index, frame in enumerate(read["state"].swapaxes(0, 1)):
                        output.write(frame, read["forcing"][:, index] if "forcing" in read else None)
                bar.advance(len(batch))
        for rounded in rounding.values():
            rounded.require_digits()
        writer.finish()
    except UserError:
        writer.discard()
        raise


def _contents(data: Dataset, chosen: range, given: Mapping[str, Any], origin: Mapping[str, Any]) -> Contents:
    """What the file will hold: the ``chosen`` trajectories with all that is known of them.

    Solver's parameters come from the data or, where these do not tell, from whoever converts them: ``given``.
    """
    provenance = {**data.provenance, **origin, "fingerprint": data.fingerprint}
    parameters = {**data.provenance.get("parameters", {}), **given}
    numbers = {name: float(value) for name, value in given.items() if type(value) in (int, float)}
    file = data.files[0] if isinstance(data, StoredDataset) else None
    if file:
        stored = {item.name for item in stored_fields(data.problem)}
        left_out = [name for name in file.field_names if name not in stored] + file.unused_scalars
        provenance["left_out"] = left_out if file.is_ours else left_out + file.provenance.get("left_out", [])
    return Contents(
        problem=data.problem,
        split=data.split,
        num_trajectories=len(chosen),
        num_frames=data.num_frames,
        seeds=tuple(file.seeds[index] for index in chosen) if file and file.seeds else (),
        start_time=file.start_time if file else 0.0,
        provenance={**provenance, **({"parameters": parameters} if parameters else {})},
        scalars={**(file.scalars if file else {}), **numbers},
    )


def parse_trajectories(text: str) -> slice:
    """``"100"`` (the first 100), ``"100:120"`` or ``"100:"`` as a slice."""
    parts = text.split(":")
    try:
        numbers = [int(part) if part.strip() else None for part in parts]
    except ValueError:
        numbers = []
    if not 1 <= len(numbers) <= 2 or any(number is not None and number < 0 for number in numbers):
        raise UserError(f"trajectories are a number or a range such as 100:120, got {text!r}")
    return slice(None, numbers[0]) if len(numbers) == 1 else slice(*numbers)


def _batch_size(data: Dataset) -> int:
    """Trajectories at a time: many, because reading one of an array may mean reading all of it."""
    problem = data.problem
    per_trajectory = 4 * data.num_frames * problem.grid.num_points * num_channels(varying_fields(problem))
    return max(1, BYTES_AT_A_TIME // per_trajectory)


def _named_split(out: Path, split: str | None) -> str | None:
    """The split that is asked for, by itself or by the name of the file to write, or else of its folder."""
    if split is not None and split not in SPLITS:
        raise unknown_name("split", split, SPLITS)
    if out.suffix[1:2].isalpha() and out.suffix not in SUFFIXES and not out.is_dir():
        raise UserError(f"cannot write {out}: name a file that ends in .hdf5, or a folder")
    named, folder = split_names(out if out.suffix in SUFFIXES else out / "any.hdf5")
    if split and named and split != named:
        raise UserError(f"{out} is called after the split {named!r}, asked for {split!r}: choose another name")
    return split or named or folder or None


def _text(chosen: slice) -> str:
    first, last = ("" if end is None else end for end in (chosen.start, chosen.stop))
    return f"{first}:{last}"
