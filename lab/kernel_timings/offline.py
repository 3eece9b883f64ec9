"""Every kernel of a configuration, compiled without a GPU: shared memory, registers and spills of each.

    python -m lab.kernel_timings.offline --case plane --capability 90
    python -m lab.kernel_timings.offline --case plane --capability 86 --limits small
    python -m lab.kernel_timings.offline --case "patched plane" --in-place --out results/cpu/patches_in_place.json

A call and its gradient run on tensors that have sizes and no memory. Every launch in it is compiled for the capability
that is asked for and does not run. ``--ptx FOLDER`` writes the code of each kernel there: two such folders say whether
a change of the source has changed any code.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

os.environ.setdefault("TRITON_DISABLE_LINE_INFO", "1")  # the same code has the same text wherever its source moves

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from factformer import Field, Grid, Problem, build_surrogate, engine
from factformer.batch import Batch
from factformer.evaluation.provenance import provenance, write_json
from factformer.kernels._triton import in_place, launching
from factformer.kernels._triton.limits import FULL, MEDIUM, SMALL, Limits
from factformer.nn.fourier_features import FourierFeatures
from factformer.surrogate import Surrogate


@dataclass(frozen=True)
class Kernel:
    """What the compiler says of one kernel at one set of sizes."""

    name: str
    shared: int
    registers: int
    stack: int
    """Bytes of a thread's registers that were moved to memory."""
    warps: int
    ptx: str
    """The first digits of the hash of its code."""


@dataclass(frozen=True)
class Case:
    """A network and a batch."""

    shape: tuple[int, ...]
    batch: int
    channels: int = 1
    frames: int = 10
    bounded: bool = False
    masked: bool = False
    forced: bool = False
    sizes: tuple[tuple[str, Any], ...] = ()


LIMITS = {"full": FULL, "medium": MEDIUM, "small": SMALL}
CASES = {
    "plane": Case((128, 128), 4),
    "large plane": Case((256, 256), 10),
    "bounded plane": Case((128, 96), 4, bounded=True),
    "box": Case((64, 64, 64), 4),
    "box of four channels": Case((64, 64, 64), 4, channels=4),
    "masked plane": Case((128, 128), 4, masked=True),
    "masked bounded box": Case((64, 64, 64), 4, channels=4, bounded=True, masked=True),
    "forced masked plane": Case((128, 128), 4, forced=True, masked=True),
    "long line": Case((1024,), 4),
    "patched plane": Case((128, 128), 4, sizes=(("patch", 2),)),
    "patched box of four channels": Case((64, 64, 64), 4, channels=4, sizes=(("patch", 2),)),
}


def build(case: Case) -> tuple[Surrogate, Batch]:
    """The network and the batch of a case, of sizes alone."""
    grid = Grid(case.shape, 1.0, not case.bounded)
    problem = Problem(
        "offline",
        grid,
        (Field("a", case.channels),),
        forcing=(Field("f"),) if case.forced else (),
        num_context_frames=case.frames,
        boundary="zero" if case.bounded else "periodic",
        masked=case.masked,
    )
    sizes = {"depth": 1, "boundary_block": False, **dict(case.sizes)}
    with torch.device("meta"):
        surrogate = build_surrogate(problem, "factformer_plus", marching_steps=4, **sizes)
        frames = torch.empty(case.batch, case.frames, *case.shape, case.channels)
        forcing = torch.empty(case.batch, case.frames + 4, *case.shape, 1) if case.forced else None
        mask = torch.empty(case.batch, *case.shape, dtype=torch.bool) if case.masked else None
        batch = Batch(frames, forcing=forcing, mask=mask)
    surrogate = surrogate.to("meta")
    for part in surrogate.modules():
        if isinstance(part, FourierFeatures):  # a table is made of its frequencies
            part.frequencies = torch.ones(part.frequencies.shape)
    return surrogate, batch


class _Autocast(contextlib.nullcontext[None]):
    """Autocast knows no tensors without memory."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()


@contextlib.contextmanager
def collected(capability: int) -> Iterator[dict[str, Any]]:
    """Launches in here are compiled for ``capability`` and gathered by name and code."""
    found: dict[str, Any] = {}
    target = GPUTarget("cuda", capability, 32)
    stand_in = SimpleNamespace(
        get_current_device=lambda: 0, get_current_stream=lambda _: 0, get_current_target=lambda: target
    )

    def keep(compiled: Any) -> None:
        text = compiled.asm["ptx"]
        found[f"{compiled.metadata.name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"] = compiled

    with mock.patch.object(driver, "_active", stand_in), mock.patch.object(torch, "autocast", _Autocast):
        launching._local.load = keep
        try:
            yield found
        finally:
            launching._local.load = None


def resources(cubin: bytes) -> tuple[int, int]:
    """Registers of a thread and bytes of its stack."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    numbers = dict(re.findall(r"(REG|STACK):(\d+)", text))
    return int(numbers["REG"]), int(numbers["STACK"])


def kernels(case: Case, capability: int, limits: Limits = FULL, ptx: Path | None = None) -> list[Kernel]:
    """All kernels of a training step of ``case``, within ``limits``."""
    surrogate, batch = build(case)
    engine.attach(surrogate, "force", limits=limits)
    with collected(capability) as found, mock.patch.object(engine, "fused_dtype", return_value=torch.bfloat16):
        values = surrogate.predict(batch, 4, surrogate.problem.grid)
        torch.autograd.grad(values.sum(), list(surrogate.parameters()), allow_unused=True)
    rows = []
    for name, compiled in sorted(found.items()):
        registers, stack = resources(compiled.asm["cubin"])
        meta = compiled.metadata
        rows.append(Kernel(meta.name, meta.shared, registers, stack, meta.num_warps, name.rpartition("-")[2]))
        if ptx is not None:
            ptx.mkdir(parents=True, exist_ok=True)
            (ptx / f"{name}.ptx").write_text(compiled.asm["ptx"], encoding="utf-8")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=list(CASES), nargs="+", default=["plane"])
    parser.add_argument("--capability", type=int, default=90)
    parser.add_argument("--limits", choices=list(LIMITS), default="full")
    parser.add_argument("--in-place", action="store_true", help="patches without copies, too")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--ptx", type=Path)
    arguments = parser.parse_args()
    began, found = time.perf_counter(), []
    for name in arguments.case:
        for in_place.IN_PLACE in (False, True) if arguments.in_place else (False,):
            of_patches = ", patches in place" if in_place.IN_PLACE else ""
            print(f"{name}, capability {arguments.capability}, {arguments.limits}{of_patches}")
            folder = arguments.ptx and arguments.ptx / f"{name}{of_patches}"
            for row in kernels(CASES[name], arguments.capability, LIMITS[arguments.limits], folder):
                print(json.dumps(asdict(row)))
                found.append({"case": name, "in_place": in_place.IN_PLACE, **asdict(row)})
    if arguments.out:
        made = provenance(seed=0, seconds=time.perf_counter() - began, device="cpu")
        settings = {"capability": arguments.capability, "limits": arguments.limits}
        write_json(arguments.out, {"analysis": "kernels, compiled without a GPU", **settings, "kernels": found, **made})


if __name__ == "__main__":
    main()
