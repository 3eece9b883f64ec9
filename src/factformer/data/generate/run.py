"""Making a dataset: every trajectory from its own seed, batch by batch, by as many processes as there are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from factformer import catalog
from factformer.config import Config, unknown_name
from factformer.data.agreement import describe_difference
from factformer.data.formats.well_statistics import write_well_statistics
from factformer.data.generate.plan import (
    changed,
    chosen_preset,
    describe,
    require_storable,
    split_counts,
    with_resolution,
)
from factformer.data.generate.progress import ProgressBar
from factformer.data.generate.ranks import Ranks, joined_ranks
from factformer.data.hdf5 import SplitFile
from factformer.data.splits import SPLITS
from factformer.data.writer import BlowUpError, SplitWriter
from factformer.errors import UserError
from factformer.grid import Grid
from factformer.pdes import require_device as require_device
from factformer.pdes._base import PDE, Preset
from factformer.problem import Problem

DTYPES = {"float32": torch.float32, "float64": torch.float64}
THREADED_POINTS = 2**16
"""Points of a solver's grid from which on several threads pay; below, they spend their time waiting for each other."""
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
    parameters: Mapping[str, Any] | None = None,
    settings: Sequence[str] = (),
    overwrite: bool = False,
    progress: bool = False,
) -> list[Path]:
    """Write ``<split>.hdf5`` for each split to the folder ``out`` and return their paths.

    ``trajectories`` is a number per split (one number: of every split asked for); ``parameters`` are those
    of the PDE; ``settings`` are assignments such as ``reynolds=500`` or ``num_frames=40`` that change them or
    the preset (`PresetChanges`). Splits that are there already with the same settings are left as they are,
    and one that was interrupted goes on where it stopped. The random start of a trajectory is a function of
    ``seed``, split and index alone; its frames then depend on ``batch_size`` only where the device's
    arithmetic does (on the CPU: not at all, but for round-off in smoke on grids of 5, 7, 9 or 11 points).
    """
    equation = catalog.find("pdes", pde).pde if isinstance(pde, str) else pde
    plan, parameters = changed(equation, chosen_preset(equation, preset), parameters or {}, settings)
    counts = split_counts(plan, splits, trajectories)
    plan = with_resolution(equation, plan, resolution, simulation_resolution)
    if dtype not in DTYPES:
        raise unknown_name("dtype", dtype, DTYPES)
    size = plan.batch_size if batch_size is None else batch_size
    if size < 1:
        raise UserError(f"batch_size must be at least 1, got {size}")
    config = equation.parameters.parse({**plan.parameters, **parameters})
    require_storable(equation, config)
    require_device(device)
    paths = []
    with joined_ranks() as ranks:
        for split, count in counts.items():
            contents = describe(equation, plan, config, split, count, seed, dtype)
            writer = SplitWriter(Path(out) / f"{split}.hdf5", contents)
            job = _Job(equation, plan, config, ranks.device(device), DTYPES[dtype], progress)
            try:
                job.run(writer, ranks, size, overwrite=overwrite)
            except UserError as error:
                if ranks.count == 1:
                    writer.discard_if_empty()
                if not isinstance(error, BlowUpError):
                    raise
                advice = "finished batches are kept: try a smaller dt, or another seed in another folder"
                raise BlowUpError(f"{error}; {advice}", error.trajectory, error.what) from None
            finally:
                writer.release()
            if split == "train" and ranks.is_first:
                write_well_statistics(writer.path)
            paths.append(writer.path)
    return paths


class _Job:
    """Solving for one split."""

    def __init__(
        self,
        equation: PDE,
        plan: Preset,
        settings: Config,
        device: torch.device,
        dtype: torch.dtype,
        progress: bool,
    ) -> None:
        self.equation, self.plan, self.settings = equation, plan, settings
        self.device, self.dtype, self.progress = device, dtype, progress
        steady = equation.problem(plan.simulation_resolution).steady
        self.num_solved = 1 if steady else plan.num_dropped + plan.num_frames

    def run(self, writer: SplitWriter, ranks: Ranks, batch_size: int, *, overwrite: bool) -> None:
        if ranks.is_first and (overwrite or not writer.is_finished()):
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
        mine = batches[ranks.rank :: ranks.count]
        share = sum(len(batch) for batch in mine)
        title = f"{self.equation.name} {writer.contents.split}"
        before = writer.contents.num_trajectories - sum(len(batch) for batch in batches)
        if ranks.count > 1:  # the first process shows its own share, which speaks for all
            title, before = f"{title} (1 of {ranks.count} processes)", 0
        with ProgressBar(
            title,
            (before + share) * self.num_solved,
            initial=before * self.num_solved,
            enabled=self.progress and ranks.is_first,
        ) as bar:
            for batch in mine:
                self._solve(writer, batch, bar)
        ranks.wait()
        if ranks.is_first:
            writer.finish()
        ranks.wait()

    @torch.no_grad()
    def _solve(self, writer: SplitWriter, batch: range, bar: ProgressBar) -> None:
        problem = writer.contents.problem
        grid = self.equation.problem(self.plan.simulation_resolution).grid
        with _threads_for(grid.num_points):
            self._solve_on(grid, problem, writer, batch, bar)

    def _solve_on(self, grid: Grid, problem: Problem, writer: SplitWriter, batch: range, bar: ProgressBar) -> None:
        generators = [torch.Generator().manual_seed(writer.contents.seeds[index]) for index in batch]
        initial = self.equation.sample_initial(
            grid, generators, dtype=self.dtype, device=self.device, initial=self.plan.initial
        )
        with writer.batch(batch) as output:
            if problem.steady:
                output.write_inputs(self._stored(initial, problem)())
            states = self.equation.frames(initial, self.num_solved, self.plan.frame_dt, self.settings)
            dropped = 0 if problem.steady else self.plan.num_dropped
            # a frame is checked and written while the solver is at the next one
            with ThreadPoolExecutor(max_workers=1) as background:
                writing: Future[None] | None = None
                for index, state in enumerate(islice(states, self.num_solved)):
                    if index >= dropped:
                        fetch = self._stored(state, problem)
                        if writing is not None:
                            writing.result()
                        writing = background.submit(lambda fetch: output.write(fetch()), fetch)
                    bar.advance(len(batch))
                if writing is not None:
                    writing.result()

    def _stored(self, state: torch.Tensor, problem: Problem) -> Callable[[], np.ndarray[Any, Any]]:
        """The state as it is stored. From a GPU it is on its way when this returns, and the solver may go on; the
        call of what is returned waits for it."""
        if tuple(state.shape[1:-1]) != problem.grid.shape:
            frames = state.unsqueeze(1)
            state = self.equation.downsample(frames, problem.grid.shape, self.plan.downsampling).squeeze(1)
        if not state.is_cuda:
            # a copy: the solver may go on in the same memory
            values = state.to(dtype=torch.float32, copy=True).contiguous().numpy()
            return lambda: values
        host = torch.empty(state.shape, dtype=torch.float32, pin_memory=True)
        host.copy_(state.float().contiguous(), non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record(torch.cuda.current_stream(state.device))

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


@contextmanager
def _threads_for(num_points: int) -> Iterator[None]:
    """One thread on small grids: quicker, and the same bits whatever the number of threads."""
    before = torch.get_num_threads()
    if num_points < THREADED_POINTS:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
