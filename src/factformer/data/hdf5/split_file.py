"""Reading one HDF5 file in The Well's layout, whether we have written it or somebody else."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from factformer._support.documents import parse_json
from factformer._support.text import cut, first_line
from factformer.config import fingerprint, unknown_name
from factformer.data.formats.well import infer_problem, read_numbers, read_scalars, read_times, regridded, unknown_parts
from factformer.data.hdf5.marks import is_ours
from factformer.data.hdf5.source import Source
from factformer.data.identity import identity
from factformer.data.layout import (
    CHECKSUMS,
    DIGEST,
    FORMAT,
    MASK,
    Entry,
    entries,
    file_digest,
    read_problem,
    statistics_names,
    stored_fields,
)
from factformer.data.opening import CONVERT, HDF5_ERRORS, open_hdf5, require_written
from factformer.data.section import Section
from factformer.data.statistics import check_statistics, moment_sizes
from factformer.errors import UserError
from factformer.problem import Field, Problem, channel_slices

Statistics = tuple[dict[str, NDArray[np.float64]], dict[str, NDArray[np.float64]]]


class SplitFile:
    """A file of one split: what it holds, and its values by trajectory and frame.

    ``said`` is what the caller says of the grid (`GRID_KEYS`); the rest of it comes from the file's coordinates.
    """

    def __init__(self, path: Path, *, allow_external: bool = False, **said: Any) -> None:
        self.path = path
        self._allow_external = allow_external
        self.is_ours = False
        self._handle: h5py.File | None = None
        self._owner = -1
        self._state = (0, 0)
        self._sources: dict[str, Source] = {}
        file = self._open()
        try:
            self._describe(file, said)
            self._require_arrays(file, self.problem)
        except UserError as error:
            raise UserError(str(error) if str(path) in str(error) else f"{path}: {error}") from None
        except HDF5_ERRORS as error:
            if isinstance(error, KeyError) and not self.is_ours:
                raise UserError(f"{path} is not in The Well's layout: {error.args[0]}; {CONVERT}") from None
            if said and isinstance(error, (ValueError, TypeError)):
                told = ", ".join(f"{name}={value!r}" for name, value in said.items())
                raise UserError(f"{path} cannot be read with {told}: {first_line(error)}") from None
            raise UserError(f"{path} is damaged: {first_line(error)}; copy or generate it again") from None
        finally:
            self.close()

    @property
    def field_names(self) -> list[str]:
        """All fields of the file, those included that its problem has no use for."""
        return list(self._entries)

    @property
    def unused_scalars(self) -> list[str]:
        """Scalars of a foreign file that cannot be parameters: they vary in time, or are no real numbers."""
        return [] if self.is_ours else [name for name in self._scalar_names if name not in self.numbers]

    @cached_property
    def fingerprint(self) -> str:
        """What tells these data from others.

        That of generated data covers problem, solver settings, seeds and sizes, which the values follow from; it is the
        same on every computer. That of converted data covers the values too, by their checksums. That of a foreign
        file is made from names, shapes and a sample of the values (`identity`), when asked for.
        """
        if self._carried and self.seeds:
            return self._carried
        if self._carried:  # converted: there is no recipe to make the values again, so their checksums count
            file = self._open()
            return fingerprint([self._carried, file[DIGEST][()].tolist()]) if DIGEST in file else self._carried
        file = self._open()
        arrays = {name: file["dimensions"][name] for name in file["dimensions"]}
        arrays |= {entry.path: file[entry.path] for found in self._entries.values() for entry in found}
        return fingerprint({"name": self.problem.name, **identity(self.path, arrays)})

    def read(
        self,
        trajectories: Sequence[int],
        frames: slice,
        problem: Problem,
        part: str = "state",
        section: Section | None = None,
        *,
        exact: bool = False,
    ) -> NDArray[Any]:
        """One part of the problem (`Dataset.read`), in float32 or as ``exact`` as stored; a ``section`` of its grid."""
        section = section or Section(tuple(slice(0, size) for size in problem.grid.shape))
        if part == "parameters":
            return self._read_parameters(trajectories, problem)
        if part == "mask":
            inside = self._read(trajectories, range(1), (MASK,), section, False)[:, 0, ..., 0]
            if not np.isin(inside, (0, 1)).all():
                raise UserError(f"{self.path}: its field 'mask' holds other numbers than 0 and 1 and is no mask")
            return inside.astype(bool)
        if part == "static":
            return self._read(trajectories, range(1), problem.static, section, exact)[:, 0]
        chosen = range(*frames.indices(self.num_frames))
        return self._read(trajectories, chosen, getattr(problem, part), section, exact)

    def _read_parameters(self, trajectories: Sequence[int], problem: Problem) -> NDArray[Any]:
        """``(trajectory, parameter)``: a number of the file where all of its trajectories share one."""
        group = self._open()["scalars"]
        columns = [np.atleast_1d(group[name][()]) for name in problem.parameters]
        chosen = [
            column[list(trajectories)] if len(column) > 1 else column.repeat(len(trajectories)) for column in columns
        ]
        return np.stack(chosen, axis=-1).astype(np.float32)

    def chosen_parts(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """``changes`` of the problem with the fields and parameters that they choose by name from this file.

        Fields of the state that become forcing are no longer predicted. With ``masked``, a field ``mask`` of ones and
        zeros is no static field but says which points lie inside the domain.
        """
        chosen = dict(changes)
        if changes.get("masked") and not self.problem.masked:
            if self._chosen(MASK.name, "static") != MASK:
                raise UserError(f"{self.path}: its field 'mask' has several channels and is no mask")
            chosen.setdefault("static", tuple(item for item in self.problem.static if item != MASK))
        for group in ("static", "forcing"):
            if group in changes:
                chosen[group] = tuple(self._chosen(item, group) for item in changes[group])
        if "forcing" in changes and "state" not in changes:
            chosen["state"] = tuple(item for item in self.problem.state if item not in chosen["forcing"])
        for name in changes.get("parameters", ()):
            if name not in self._scalar_names:
                raise unknown_name("parameter", name, self._scalar_names)
        return chosen

    def _chosen(self, item: str | Field, group: str) -> Field:
        name = item if isinstance(item, str) else item.name
        if name not in self._entries:
            raise unknown_name("field", name, self._entries)
        entries = self._entries[name]
        varies = bool(self._open()[entries[0].path].attrs.get("time_varying", True))
        if varies != (group == "forcing"):
            known = "varies in time" if varies else "does not vary in time"
            raise UserError(f"{self.path}: {name!r} {known}, so it cannot be {group}")
        return Field(name, sum(entry.channels.stop - entry.channels.start for entry in entries))

    def require(self, problem: Problem) -> None:
        """Raise where the file does not hold all that ``problem`` needs."""
        self._require_arrays(self._open(), problem)

    def selected_statistics(self, problem: Problem) -> Statistics | None:
        """The stored statistics of what ``problem`` has; none where they are of another choice of parts."""
        groups = ("state", "static", "forcing", "parameters")
        if self.statistics is None or any(set(getattr(problem, g)) - set(getattr(self.problem, g)) for g in groups):
            return None
        state = _channels(self.problem.state, problem.state)
        chosen = {
            "state": state,
            "increment": state,
            "static": _channels(self.problem.static, problem.static),
            "forcing": _channels(self.problem.forcing, problem.forcing),
            "parameters": [self.problem.parameters.index(name) for name in problem.parameters],
        }
        mean, std = ({kind: table[kind][chosen[kind]] for kind in table if chosen[kind]} for table in self.statistics)
        return mean, std

    def close(self) -> None:
        if self._handle is not None and self._owner == os.getpid():
            self._handle.close()
        self._handle = None
        self._sources = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_handle": None, "_owner": -1, "_sources": {}}

    def _describe(self, file: h5py.File, said: Mapping[str, Any]) -> None:
        self.is_ours = is_ours(file)
        self.num_trajectories = int(file.attrs["n_trajectories"])
        if self.num_trajectories < 1:
            raise UserError(f"{self.path} says that it holds {self.num_trajectories} trajectories")
        times = read_times(file)
        self.num_frames, self.start_time = len(times), float(times[0])
        self.scalars = read_scalars(file)
        self._scalar_names = list(file["scalars"]) if "scalars" in file else []
        self.seeds = tuple(file["seeds"][:].tolist()) if "seeds" in file else ()
        self.statistics: Statistics | None = None
        self.provenance: dict[str, Any] = {}
        self._carried = ""
        self._entries: dict[str, list[Entry]]
        self.numbers = read_numbers(file)
        """Scalars that may be parameters."""
        if not self.is_ours:
            self.problem, self._entries = infer_problem(file, self.path, said)
            self.provenance = dict(unknown_parts(file))
            return
        version = int(file.attrs["format"])
        if version > FORMAT:
            raise UserError(f"{self.path} has format {version}, newer than {FORMAT}: upgrade factformer")
        if DIGEST in file and file[DIGEST][()].tobytes() != file_digest(file):
            raise UserError(
                f"{self.path} was damaged or changed after it was written: its checksum does not fit what it says; "
                "copy or generate it again"
            )
        self.problem = regridded(read_problem(file), self.path, said)
        self._carried = str(file.attrs["fingerprint"])
        provenance = parse_json(file.attrs["provenance"], "its provenance")
        if not isinstance(provenance, dict) or not isinstance(provenance.get("parameters", {}), dict):
            raise UserError(f"its provenance is not a mapping of names to values: {cut(provenance)}")
        self.provenance = provenance
        fields = {item.name: item for item in stored_fields(self.problem)}
        self._entries = {name: entries([item], self.problem.grid.num_axes) for name, item in fields.items()}
        if "statistics" in file:
            names = statistics_names(self.problem, version)
            self.statistics = (
                {kind: file[f"statistics/{name}_mean"][:] for kind, name in names.items()},
                {kind: file[f"statistics/{name}_std"][:] for kind, name in names.items()},
            )
            check_statistics(*self.statistics, moment_sizes(self.problem), f"{self.path}: its statistics")

    def _require_arrays(self, file: h5py.File, problem: Problem) -> None:
        """Every field is there, with as many trajectories, frames and points as the file says it holds."""
        for item in stored_fields(problem):
            for entry in self._entries[item.name]:
                values = file[entry.path]
                if values.dtype.kind not in "fiub":
                    kind = "complex numbers" if values.dtype.kind == "c" else f"{values.dtype}"
                    raise UserError(f"{self.path}: {entry.path} holds {kind}; store real numbers instead")
                require_written(self.path, entry.path, values)
                width = entry.channels.stop - entry.channels.start
                if not Source(values, self.problem.grid.shape).holds(self.num_trajectories, self.num_frames, width):
                    raise UserError(
                        f"{self.path} is damaged: {entry.path} of shape {values.shape} does not hold "
                        f"{self.num_trajectories} trajectories of {self.num_frames} frames on {self.problem.grid.shape}"
                    )
        for name in problem.parameters:
            shape = file["scalars"][name].shape
            if shape not in ((), (1,), (self.num_trajectories,)):
                raise UserError(
                    f"{self.path} is damaged: scalars/{name} of shape {shape} is no number of each of "
                    f"{self.num_trajectories} trajectories"
                )

    def _read(
        self, trajectories: Sequence[int], frames: range, fields: tuple[Field, ...], section: Section, exact: bool
    ) -> NDArray[Any]:
        num_channels = sum(item.num_channels for item in fields)
        shape = (len(trajectories), len(frames), *section.shape, num_channels)
        places = [entry for item in fields for entry in self._entries[item.name]]
        stored = [self._source(entry).dtype for entry in places] if exact else []
        result = np.empty(shape, dtype=np.result_type(np.float32, *stored))
        self._forget_if_changed()
        start = 0
        for entry in places:
            width = entry.channels.stop - entry.channels.start
            target = result[..., start : start + width]
            try:
                self._source(entry).read(trajectories, frames, target, section)
            except (OSError, RuntimeError, KeyError) as error:
                self._require_same_size()
                raise UserError(f"{self.path} is damaged at {entry.path}: {first_line(error)}") from None
            start += width
        self._require_same_size()
        if not exact and not all(self._source(entry).is_verified for entry in places):
            for position, trajectory in enumerate(trajectories):
                if not np.isfinite(result[position]).all():
                    raise UserError(
                        f"{self.path} holds NaN or infinite values in trajectory {trajectory}; "
                        "mend it, or leave it out with `factformer convert --trajectories`"
                    )
        return result

    def _forget_if_changed(self) -> None:
        """Verify the checksums anew where somebody has written to the file since."""
        now = self._found_state(self._open())
        if now != self._state:
            self._sources = {}
            self._state = (self._state[0], now[1])

    def _require_same_size(self) -> None:
        """Raise where the file has another size than when it was opened: HDF5 reads zeros beyond its end."""
        size, _ = self._found_state(self._open())
        before = self._state[0]
        if size < before:
            raise UserError(
                f"{self.path} was truncated while it was read: {size} bytes of {before} are left; "
                "copy or generate it again"
            )
        if size > before:
            raise UserError(
                f"{self.path} grew from {before} to {size} bytes while it was read; copy or generate it again"
            )

    def _source(self, entry: Entry) -> Source:
        file = self._open()
        if entry.path not in self._sources:
            stored = f"{CHECKSUMS}/{entry.path}"
            checksums = file[stored][()] if self.is_ours and stored in file else None
            self._sources[entry.path] = Source(file[entry.path], self.problem.grid.shape, checksums)
        return self._sources[entry.path]

    def _open(self) -> h5py.File:
        if self._handle is None or self._owner != os.getpid():  # HDF5 handles do not survive a fork
            self._handle = open_hdf5(self.path, allow_external=self._allow_external)
            self._owner = os.getpid()
            self._sources = {}
            self._state = self._found_state(self._handle)
        return self._handle

    @staticmethod
    def _found_state(file: h5py.File) -> tuple[int, int]:
        found = os.fstat(file.id.get_vfd_handle())
        return found.st_size, found.st_mtime_ns


def _channels(stored: tuple[Field, ...], wanted: tuple[Field, ...]) -> list[int]:
    slices = channel_slices(stored)
    return [channel for item in wanted for channel in range(slices[item.name].start, slices[item.name].stop)]
