"""Carrying the segments of a run from one machine to the next, and results as archives that are always whole.

Only little data can be carried, so the state of a run is made smaller. Weights stay exact. Their moving average is
stored as its difference from them, and the optimiser's moments are rounded; both are bfloat16. A run resumed from
such a state differs in its last bits from one that was never stopped. A run resumed in its own folder does not.
"""

from __future__ import annotations

import io
import json
import lzma
import os
import tarfile
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load, save
from torch import Tensor

from factformer._support.run_names import CHECKPOINTS, CONFIG, ENVIRONMENT
from factformer.errors import UserError
from factformer.training.runfolder import checkpoint
from factformer.training.runfolder.checkpoint import Snapshot
from factformer.zoo.description import DESCRIPTION

PART_BYTES = 15 * 2**20
FILES = (CONFIG, ENVIRONMENT)
AVERAGE, WEIGHTS, MOMENTS = "average.", "weights.", ("/exp_avg", "/exp_avg_sq", "/momentum")


def pack(run: Path, out: Path, name: str, part_bytes: int = PART_BYTES) -> list[Path]:
    """Write the last checkpoint of ``run`` as ``out/<name>.state-0``, ``-1``, …"""
    latest = checkpoint.latest(run / CHECKPOINTS)
    if latest is None:
        raise UserError(f"{run} has no checkpoint to resume from")
    snapshot = checkpoint.load(latest)
    description = {
        "files": {file: (run / file).read_text(encoding="utf-8") for file in FILES},
        "state": snapshot.state,
        "metrics": snapshot.metrics,
    }
    head = json.dumps(description).encode()
    body = save(_reduced(snapshot.tensors))
    whole = lzma.compress(len(head).to_bytes(8, "big") + head + body, preset=0)
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob(f"{name}.state-*"):
        old.unlink()
    paths = []
    for index, start in enumerate(range(0, len(whole), part_bytes)):
        path = out / f"{name}.state-{index}"
        path.write_bytes(whole[start : start + part_bytes])
        paths.append(path)
    return paths


def unpack(folder: Path, name: str, run: Path) -> bool:
    """The run folder again from its pieces in ``folder``; False if there are none."""
    parts = sorted(folder.glob(f"{name}.state-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    if not parts:
        return False
    try:
        whole = lzma.decompress(b"".join(path.read_bytes() for path in parts))
        length = int.from_bytes(whole[:8], "big")
        description = json.loads(whole[8 : 8 + length])
        tensors = load(whole[8 + length :])
    except (lzma.LZMAError, ValueError) as error:
        raise UserError(f"the pieces {name}.state-* in {folder} are not complete: {error}") from None
    run.mkdir(parents=True, exist_ok=True)
    for file, content in description["files"].items():
        (run / file).write_text(content, encoding="utf-8")
    snapshot = Snapshot(_restored(tensors), description["state"], description["metrics"])
    checkpoint.save(run / CHECKPOINTS, snapshot)
    return True


def _reduced(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    found = {}
    for name, tensor in tensors.items():
        if name.startswith(AVERAGE):
            exact = tensors[WEIGHTS + name.removeprefix(AVERAGE)]
            found[name] = (tensor - exact).to(torch.bfloat16)
        elif name.endswith(MOMENTS) and tensor.ndim:
            found[name] = tensor.to(torch.bfloat16)
        else:
            found[name] = tensor.contiguous()
    return found


def _restored(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    found = {}
    for name, tensor in tensors.items():
        if name.startswith(AVERAGE):
            found[name] = tensors[WEIGHTS + name.removeprefix(AVERAGE)] + tensor.float()
        elif name.endswith(MOMENTS) and tensor.ndim:
            found[name] = tensor.float()
        else:
            found[name] = tensor
    return found


def add_to_archive(archive: Path, files: Mapping[str, Path], *, fresh: bool = False) -> None:
    """Put files under their names into a tar file, which is replaced as a whole."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    contents: dict[str, bytes] = {} if fresh else read_archive(archive)
    contents |= {name: path.read_bytes() for name, path in files.items()}
    partial = archive.with_name(f".{archive.name}.partial")
    with tarfile.open(partial, "w") as file:
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o644
            file.addfile(member, io.BytesIO(content))
    os.replace(partial, archive)


def read_archive(archive: Path) -> dict[str, bytes]:
    """Names and contents of the plain files in a tar file; nothing where there is none."""
    if not archive.is_file():
        return {}
    with tarfile.open(archive) as file:
        return {item.name: extracted.read() for item in file if (extracted := file.extractfile(item)) is not None}


def collect(folder: Path, root: Path) -> list[Path]:
    """Put the results and bundles that came back in ``folder`` into their places below ``root``.

    A bundle in the zoo that was trained much longer than the new one stays.
    """
    written = []
    for archive in sorted(folder.rglob("*.tar")):
        contents = read_archive(archive)
        for description in [name for name in contents if name.endswith(f"/{DESCRIPTION}")]:
            place = (root / description).parent
            there = _seconds((root / description).read_bytes() if place.is_dir() else b"")
            if there > 1.2 * _seconds(contents[description]):
                contents = {name: c for name, c in contents.items() if (root / name).parent != place}
        for name, content in contents.items():
            path = root / name
            if path.resolve().is_relative_to(root.resolve()) and name.split("/")[0] in ("results", "zoo"):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
                written.append(path)
    return written


def _seconds(description: bytes) -> float:
    return float(json.loads(description)["provenance"].get("training_seconds") or 0) if description else 0.0
