"""From a path to its arrays and what they say of themselves: which format it is of."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from factformer.data.formats import arrays, frames, vtk, xarray_files
from factformer.data.formats.pdebench import Found, describe_file
from factformer.errors import UserError

SUFFIXES = (*arrays.SUFFIXES, *xarray_files.SUFFIXES, *vtk.SUFFIXES, vtk.COLLECTION)


def describe_source(path: Path, *, taken: Collection[str] = (), allow_external: bool = False) -> Found:
    """What a file, a zarr store or a folder of frames holds; ``taken`` are arrays that were said to be fields."""
    if xarray_files.is_zarr(path):
        return xarray_files.describe_zarr(path, allow_external=allow_external)
    if path.suffix == ".zarr":
        raise UserError(f"{path} is no zarr store: it is no folder with zarr.json or .zgroup; copy it again")
    if path.is_dir():
        return frames.describe_folder(path)
    if path.suffix in xarray_files.SUFFIXES:
        return xarray_files.describe_netcdf(path, allow_external=allow_external)
    if path.suffix in vtk.SUFFIXES:
        return frames.describe_grid(path)
    if path.suffix == vtk.COLLECTION:
        return frames.describe_collection(path, allow_external=allow_external)
    if path.suffix not in SUFFIXES and path.exists():
        raise UserError(f"cannot read {path}: its name must end in one of {', '.join(SUFFIXES)}, or be a folder")
    return describe_file(path, arrays.open_arrays(path, allow_external=allow_external, any_times=True), taken)
