"""Looking at files of others in a process of its own, which may hang, crash or run out of memory.

`factformer.data.opening` runs this file as a script. It imports h5py, scipy or zarr alone, so that it starts quickly.
The task comes as JSON on standard input; for each file one line of JSON goes out, in the order of the task.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from typing import Any

BASE_MEMORY = 2**31
LARGEST_CHUNK = 2**28
"""Bytes of a chunk that is still unpacked to see whether that works."""


def limit(seconds: int, memory: int) -> None:
    """Limits of the system on this process; there are none on Windows, where the parent's clock has to do."""
    try:
        import resource
    except ImportError:
        return
    for kind, value in (("RLIMIT_CPU", seconds), ("RLIMIT_AS", memory), ("RLIMIT_CORE", 0)):
        if hasattr(resource, kind):
            try:
                resource.setrlimit(getattr(resource, kind), (value, value))
            except (ValueError, OSError):  # macOS knows some limits and sets none of them; a lower one may hold
                continue


def look_at_hdf5(path: str) -> dict[str, Any]:
    """Touch every attribute, shape and type, and the first and last values of every array.

    What lies outside of the file is not followed but named: external links, external storage, virtual datasets.
    """
    import h5py

    outside: list[str] = []
    with h5py.File(path, "r", locking="best-effort") as file:
        seen = set()
        waiting: list[Any] = [file]
        while waiting:
            item = waiting.pop()
            address = attempt(lambda: h5py.h5o.get_info(item.id).addr, None)  # noqa: B023 - called at once
            if address is None:
                outside.append(f"{item.name} does not say where it is")
            if address is None or address in seen:
                continue
            seen.add(address)
            for attribute in attempt(lambda: list(item.attrs), []):  # noqa: B023
                attempt(lambda: item.attrs[attribute], None)  # noqa: B023
            if isinstance(item, h5py.Dataset):
                outside += attempt(lambda: outside_of(item), [f"{item.name} does not say where its values are"])  # noqa: B023
                attempt(lambda: touch(item), None)  # noqa: B023
            elif isinstance(item, h5py.Group):
                for name in attempt(lambda: list(item), []):  # noqa: B023
                    link = attempt(lambda: item.get(name, getlink=True), None)  # noqa: B023
                    if isinstance(link, h5py.ExternalLink):
                        outside.append(f"{item.name.rstrip('/')}/{name} is a link to {link.filename}")
                    elif isinstance(link, h5py.HardLink):
                        waiting += attempt(lambda: [item[name]], [])  # noqa: B023
    return {"outside": outside}


def attempt(step: Callable[[], Any], otherwise: Any) -> Any:
    """What ``step`` gives. Its errors are left to the parent: this process finds out what cannot be survived."""
    try:
        return step()
    except Exception as error:
        if isinstance(error, MemoryError) or says_no_memory(error):
            raise MemoryError from None
        return otherwise


def says_no_memory(error: Exception) -> bool:
    return any(words in str(error).lower() for words in ("unable to allocate", "can't allocate", "allocation failed"))


def outside_of(item: Any) -> list[str]:
    """Where the values of a dataset are, if not in its file; a dataset that does not tell cannot be read either."""
    if item.external:
        return [f"{item.name} is stored in {item.external[0][0]}"]
    if item.is_virtual:
        return [f"{item.name} is a virtual dataset of {item.virtual_sources()[0].file_name}"]
    return []


def touch(item: Any) -> None:
    """Read the first and the last value."""
    if item.external or item.is_virtual or item.shape is None or not item.size:
        return
    if math.prod(item.chunks or (1,)) * max(item.dtype.itemsize, 1) <= LARGEST_CHUNK:
        item[(0,) * item.ndim]
        item[tuple(size - 1 for size in item.shape)]


def look_at_matlab(path: str, memory: int) -> dict[str, Any]:
    """Read a MATLAB file of version 5, if what it says it unpacks to fits into ``memory``."""
    from scipy.io import loadmat, whosmat

    needed = sum(8 * math.prod(shape) for _, shape, _ in whosmat(path))
    if needed > 8 * memory:  # the smallest numbers take one byte
        raise MemoryError
    loadmat(path)
    return {}


def look_at_netcdf3(path: str) -> dict[str, Any]:
    """Touch the first and last value of every variable of a NetCDF file of an old version."""
    from scipy.io import netcdf_file

    with netcdf_file(path, "r", mmap=False) as file:
        for variable in file.variables.values():
            values = variable.data
            if values.size:
                values.flat[0], values.flat[-1]
    return {}


def look_at_zarr(path: str) -> dict[str, Any]:
    """Touch the first and last value of every array of a store."""
    import zarr

    found = zarr.open(path, mode="r")
    waiting = [found]
    while waiting:
        item = waiting.pop()
        if hasattr(item, "shape"):
            if math.prod(item.shape) and math.prod(item.chunks) * item.dtype.itemsize <= LARGEST_CHUNK:
                item[(0,) * item.ndim]
                item[tuple(size - 1 for size in item.shape)]
        else:
            waiting += [item[name] for name in item]
    return {}


LOOKS: dict[str, Callable[..., dict[str, Any]]] = {
    "hdf5": look_at_hdf5,
    "mat": look_at_matlab,
    "netcdf3": look_at_netcdf3,
    "zarr": look_at_zarr,
}


def main() -> None:
    task = json.load(sys.stdin)
    limit(task["seconds"], task["memory"] + BASE_MEMORY)
    for path in task["paths"]:
        try:
            look = LOOKS[task["kind"]]
            answer = look(path, task["memory"]) if task["kind"] == "mat" else look(path)
        except MemoryError:
            answer = {"memory": True}
        except Exception as error:  # the parent meets the same error and says it in its own words
            answer = {"memory": says_no_memory(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
