"""Making a dataset: every trajectory from its own seed, batch by batch, by as many processes as there are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from factformer._support.files import clean_leftovers
from factformer.batch import Batch
from factformer.config import unknown_name
from factformer.data.agreement import describe_difference
from factformer.data.formats.well_statistics import write_well_statistics
from factformer.data.generate.plan import (
    changed,
    chosen_preset,
    describe,
    require_cuttable,
    require_solvable,
    require_storable,
    solved_shape,
    split_counts,
    with_resolution,
)
from factformer.data.generate.progress import ProgressBar
from factformer.data.generate.ranks import Ranks, joined_ranks
from factformer.data.generate.solve import Solver
from factformer.data.hdf5 import SplitFile
from factformer.data.splits import SPLITS
from factformer.data.writer import BatchWriter, Share, SplitWriter
from factformer.errors import BlewUp, UserError
from factformer.pdes import PDE, Preset, Settings, as_pde
from factformer.pdes import require_device as require_device

DTYPES = {"float32": torch.float32, "float64": torch.float64}
OTHERWISE = "choose another folder, or make all of its splits anew with --overwrite"


def generate(
    pde: str | PDE,
    out: str | Path,
    *,
    preset: str | Preset = "small",
    splits: Sequence[str] | None = None,
    trajectories: int | Mapping[str, int] | None = None,
    resolution: int | None = None,
    simulation_resolution: int | None = None,
    seed: int = 0,
    device: str = "cpu",
    dtype: str = "float32",
    batch_size: int | None = None,
    domain: int = 1,
    parameters: Mapping[str, Any] | None = None,
    settings: Sequence[str] = (),
    overwrite: bool = False,
    progress: bool = False,
) -> list[Path]:
    """Write ``<split>.hdf5`` for each split to the folder ``out`` and return their paths.

    ``trajectories`` is a number per split (one number: of every split asked for); ``parameters`` are those
    of the PDE; ``settings`` are assignments such as ``reynolds=500`` or ``num_frames=40`` that change them or
    the preset (`PresetChanges`). A parameter may be a range, ``"200..2000"`` or ``"200..2000:log"``, from which each
    trajectory draws a value by its own seed; values are stored and become parameters of the problem.

    Splits that are there already with the same settings are left as they are, and one that was interrupted resumes
    where it stopped. The random start of a trajectory is a function of ``seed``, split and index alone; its frames
    then depend on ``batch_size`` only where the device's arithmetic does (on the CPU: not at all, but for round-off
    in smoke on grids of 5, 7, 9 or 11 points).

    Of several processes (``torchrun``), ``domain`` share the grid of each trajectory: each holds, solves and writes its
    part of it. Periodic spectral solvers can be cut so.
    """
    equation = as_pde(pde)
    plan, parameters = changed(equation, chosen_preset(equation, preset), parameters or {}, settings)
    counts = split_counts(plan, splits, trajectories)
    plan = with_resolution(equation, plan, resolution, simulation_resolution, domain)
    require_cuttable(equation, plan, domain)
    if dtype not in DTYPES:
        raise unknown_name("dtype", dtype, DTYPES)
    size = plan.batch_size if batch_size is None else batch_size
    if size < 1:
        raise UserError(f"batch_size must be at least 1, got {size}")
    chosen = Settings.parse(equation, {**plan.parameters, **parameters})
    require_storable(equation, chosen)
    require_solvable(equation, plan, chosen, counts, seed)
    require_device(device)
    paths = []
    with joined_ranks(domain) as ranks:
        pencils = ranks.pencils(solved_shape(equation, plan), ranks.device(device))
        if ranks.is_first:
            clean_leftovers(Path(out))
        for split, count in counts.items():
            contents = describe(equation, plan, chosen, split, count, seed, dtype)
            writer = SplitWriter(Path(out) / f"{split}.hdf5", contents)
            solver = Solver(equation, plan, chosen, ranks.device(device), DTYPES[dtype], pencils)
            try:
                _run(solver, writer, ranks, size, overwrite=overwrite, progress=progress)
            except UserError as error:
                if ranks.count == 1:
                    writer.discard_if_empty()
                if not isinstance(error, BlewUp):
                    raise
                advice = "finished batches are kept: try a smaller dt, or another seed in another folder"
                raise BlewUp(f"{error}; {advice}", error.trajectory, error.what) from None
            finally:
                writer.release()
            if split == "train" and ranks.is_first:
                write_well_statistics(writer.path)
            paths.append(writer.path)
    return paths


def _run(
    solver: Solver, writer: SplitWriter, ranks: Ranks, batch_size: int, *, overwrite: bool, progress: bool
) -> None:
    """Solve for what one split still lacks."""
    if ranks.is_first and (overwrite or writer.work.exists() or not writer.is_finished()):
        writer.lock()  # from here on nobody else can finish it
        if overwrite or not writer.is_finished():
            _require_same_folder(writer, overwrite)
            writer.prepare(overwrite=overwrite)
        else:
            writer.discard()
    ranks.wait()
    if writer.is_finished() and not overwrite:
        return
    batches = writer.pending(batch_size)
    ranks.wait()  # nobody writes before everybody has seen the same list
    mine = batches[ranks.team :: ranks.num_teams]
    count = sum(len(batch) for batch in mine)
    title = f"{solver.equation.name} {writer.contents.split}"
    before = writer.contents.num_trajectories - sum(len(batch) for batch in batches)
    if ranks.num_teams > 1:  # the first process shows its own share, which speaks for all
        workers = "processes" if ranks.domain == 1 else f"teams of {ranks.domain} processes"
        title, before = f"{title} (1 of {ranks.num_teams} {workers})", 0
    share = None
    if ranks.team_group is not None:
        share = Share(solver.pencils.points(writer.contents.problem.grid.shape), ranks.team_group)
    with ProgressBar(
        title,
        (before + count) * solver.num_solved,
        initial=before * solver.num_solved,
        enabled=progress and ranks.is_first,
    ) as bar:
        for batch in mine:
            seeds = [writer.contents.seeds[index] for index in batch]
            solver.solve(seeds, [_file_sink(writer, batch, share)], bar.advance)
    ranks.wait()
    if ranks.is_first:
        writer.finish()
    ranks.wait()


@contextmanager
def _file_sink(writer: SplitWriter, batch: range, share: Share | None) -> Iterator[_FileSink]:
    """A frame is checked and written while the solver is at the next one."""
    with writer.batch(batch, share) as output, ThreadPoolExecutor(max_workers=1) as background:
        sink = _FileSink(writer.contents.problem.grid.shape, output, background)
        yield sink
        sink.wait()


class _FileSink:
    """A batch of a split on its way into the file."""

    def __init__(self, shape: tuple[int, ...], output: BatchWriter, background: ThreadPoolExecutor) -> None:
        self.shape, self.output, self.background = shape, output, background
        self.writing: Future[None] | None = None

    def take_known(self, known: Batch) -> None:
        writers = {
            "parameters": self.output.write_parameters,
            "mask": self.output.write_mask,
            "static": self.output.write_static,
        }
        for part, write in writers.items():  # the mask first: it says where fields count
            values = getattr(known, part)
            if values is not None:
                write(_fetched(values)())

    def take(self, values: Tensor, forcing: Tensor | None) -> None:
        fetch = _fetched(values)
        fetch_forcing = None if forcing is None else _fetched(forcing)
        self.wait()
        self.writing = self.background.submit(
            lambda: self.output.write(fetch(), None if fetch_forcing is None else fetch_forcing())
        )

    def wait(self) -> None:
        """Return when the last frame is written; fail if it cannot be."""
        if self.writing is not None:
            self.writing.result()


def _fetched(values: Tensor) -> Callable[[], np.ndarray[Any, Any]]:
    """A copy of ``values`` as it is stored. From a GPU it is on its way when this returns, and the solver may continue;
    the call of what is returned waits for it."""
    if not values.is_cuda:
        copy = values.to(dtype=torch.float32, copy=True).contiguous().numpy()
        return lambda: copy
    host = torch.empty(values.shape, dtype=torch.float32, pin_memory=True)
    host.copy_(values.float().contiguous(), non_blocking=True)
    arrived = torch.cuda.Event()
    arrived.record(torch.cuda.current_stream(values.device))

    def fetch() -> np.ndarray[Any, Any]:
        arrived.synchronize()
        return host.numpy()

    return fetch


def _require_same_folder(writer: SplitWriter, overwrite: bool) -> None:
    """Splits of one folder belong together: refuse another problem, or other parameters, beside what is there."""
    parameters = writer.contents.provenance["parameters"]
    for split in SPLITS:
        path = writer.path.with_name(f"{split}.hdf5")
        if path == writer.path or overwrite or not path.exists():
            continue
        there = SplitFile(path)
        difference = describe_difference(writer.contents.problem, there.problem)
        if difference:
            raise UserError(f"{path} is of another problem: {difference}; {OTHERWISE}")
        for name, value in there.provenance.get("parameters", {}).items():
            if parameters.get(name) != value:
                raise UserError(f"{path} was made with {name}={value}, asked for {parameters.get(name)}; {OTHERWISE}")
