"""What has not been run on a GPU yet, in the order in which it is worth its minutes, as ready commands.

    python -m lab.owed list                                   what results/ does not hold, minutes, and their sum
    python -m lab.owed next --seconds 560 --print             the commands that fit, to be typed
    python -m lab.owed next --seconds 560 --pack OUT          run them; what is new is packed into OUT at once
    python -m lab.owed beside --seconds 560 --jobs 8 --pack OUT   several at a time, of those that measure no time
    python -m lab.campaign collect FOLDER                     put the archives that came back into results/ and zoo/
    python -m lab.owed next --scale tiny --only house       the same commands in sizes that a CPU does in seconds

What runs beside others shares the GPU through NVIDIA's multi-process service where that is installed. Its runs are
compared after as many updates, not after as many minutes.

A machine with a GPU is there for minutes and starts bare. So every command makes its own data, and a command that is
cut short costs nothing but itself. Where there is no history, set FACTFORMER_COMMIT to the commit, and unpack the
earlier source before (`python -m lab.checks.losses --help`).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

from lab.campaign.datasets import DATA
from lab.campaign.entries import Entry
from lab.campaign.segments import add_to_archive
from lab.command_line import run_command
from lab.owed.queue import QUEUE, Check, Owed, missing, queue

SPARE = 15.0
"""Kept at the end of the time, to pack."""
TINY_MINUTES = 0.02


def batches(owed: Sequence[Owed]) -> Iterator[list[Owed]]:
    """Checks alone; runs on the same data together, since the data are solved once."""
    held: list[Owed] = []
    for one in owed:
        fresh = not held or not isinstance(one.work, Entry) or not isinstance(held[-1].work, Entry)
        if held and (fresh or one.work.data_name != held[-1].work.data_name):  # type: ignore[union-attr]
            yield held
            held = []
        held.append(one)
    if held:
        yield held


def seconds_of(batch: Sequence[Owed]) -> float:
    """What a batch is expected to take, at least."""
    work = batch[0].work
    data = DATA[work.data_name].seconds if isinstance(work, Entry) else 0.0
    return data + sum(one.seconds for one in batch)


def fitting(batch: Sequence[Owed], seconds: float) -> list[Owed]:
    """As many of a batch, from its beginning, as fit."""
    count = sum(seconds_of(batch[: number + 1]) <= seconds for number in range(len(batch)))
    return list(batch[:count])


def line_of(batch: Sequence[Owed], results: Path, work: Path, scale: str, seconds: float, pack: Path | None) -> str:
    """The command of a batch."""
    first = batch[0].work
    if isinstance(first, Check):
        return first.line(results, work, scale)
    words = [sys.executable, "-m", "lab.campaign", "run"]
    words += [f"{one.work.group}/{one.work.path.removesuffix('.json')}" for one in batch if isinstance(one.work, Entry)]
    words += ["--results", str(results), "--seconds", f"{seconds:.0f}"]
    words += [] if pack is None else ["--pack", str(pack)]
    if scale == "tiny":
        names = {
            name for one in batch if isinstance(one.work, Entry) for name in (one.work.data_name, *one.work.judged_on)
        }
        words += [
            "--scale",
            "tiny",
            "--minutes",
            str(TINY_MINUTES),
            "--device",
            "cpu",
            "--work",
            str(work / "campaign"),
        ]
        words += [word for name in sorted(names) for word in ("--trajectories", f"{name},4,2")]
    return shlex.join(words)


def do(line: str, seconds: float) -> int:
    """Run a line of a shell; what is not done in time is ended with all that it started."""
    process = subprocess.Popen(["bash", "-c", line], start_new_session=True)
    try:
        return process.wait(timeout=max(seconds, 1.0))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return 124


def settled(done: Sequence[Owed], options: argparse.Namespace) -> list[str]:
    """Pack the files that are there now; the titles of what has not written all of its own."""
    failed = []
    for one in done:
        there = {f"results/{path}": options.results / path for path in one.paths if (options.results / path).is_file()}
        if options.pack is not None and there:
            add_to_archive(options.pack / "results.tar", there)
        if len(there) < len(one.paths):
            failed.append(one.title)
    return failed


@contextlib.contextmanager
def shared_device() -> Iterator[None]:
    """Processes in here share the GPU through NVIDIA's multi-process service, if it is installed."""
    tool = shutil.which("nvidia-cuda-mps-control")
    print("sharing the device " + ("by turns: there is no multi-process service" if tool is None else f"by {tool}"))
    if tool is None:
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        places = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        subprocess.run([tool, "-d"], env={**os.environ, **places}, check=True)
        try:
            with mock.patch.dict(os.environ, places):
                yield
        finally:
            subprocess.run([tool], input="quit\n", text=True, env={**os.environ, **places}, check=False)


def run_beside(options: argparse.Namespace) -> int:
    """What may share the GPU, several at a time; each run is expected to take ``slowdown`` times as long as alone."""
    began = time.monotonic()
    work = options.work or Path(tempfile.mkdtemp(prefix="owed-"))
    pending = iter([one for one in missing(options.results, options.only) if one.beside])
    failed: list[str] = []
    turn = threading.Lock()

    def work_off(number: int) -> None:
        while True:
            with turn:
                one = next(pending, None)
            left = options.seconds - (time.monotonic() - began) - SPARE
            if one is None or left <= 0:
                return
            if options.scale == "paper" and options.slowdown * seconds_of([one]) > left:
                continue
            pack = None
            if isinstance(one.work, Entry) and one.work.bundle and options.pack is not None:
                pack = options.pack / "bundles"
            line = line_of([one], options.results, work / str(number), options.scale, left, pack)
            if isinstance(one.work, Entry):
                line += shlex.join(["", "--beside", f"up to {options.jobs - 1} other runs"])
            code = do(line, left)
            with turn:
                failed.extend(settled([one], options))
                word = "" if not code else f" (exit {code})"
                print(f"{time.monotonic() - began:.0f} s: {one.title}{word}", flush=True)

    with shared_device(), ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(work_off, range(options.jobs)))
    for title in failed:
        print(f"not done, or not to its end: {title}")
    return int(bool(failed))


def run_next(options: argparse.Namespace) -> int:
    deadline, failed = time.monotonic() + options.seconds, []
    work = options.work or Path(tempfile.mkdtemp(prefix="owed-"))
    planned = options.seconds
    for batch in batches(missing(options.results, options.only)):
        left = (planned if options.print else deadline - time.monotonic()) - SPARE
        taken = fitting(batch, left) if options.scale == "paper" else batch
        if not taken or left <= 0:
            continue
        line = line_of(taken, options.results, work, options.scale, left, options.pack)
        print(line, flush=True)
        if options.print:
            planned -= min(seconds_of(taken), left)
            continue
        code = do(line, left)
        failed += settled(taken, options)
        word = "" if not code else f" (exit {code})"
        print(f"{options.seconds - (deadline - time.monotonic()):.0f} s: {taken[0].title}{word}", flush=True)
    for title in failed:
        print(f"not done, or not to its end: {title}")
    return int(bool(failed))


def show(options: argparse.Namespace) -> int:
    owed = missing(options.results, options.only)
    topics: dict[str, float] = {}
    for one in owed:
        print(f"{one.minutes:5.1f} min  {one.topic:<11} {one.title}  → {', '.join(one.paths)}")
        topics[one.topic] = topics.get(one.topic, 0.0) + one.minutes
    known = len(queue())
    print(f"{len(owed)} of {known} are missing: {sum(topics.values()):.0f} minutes and the data of the runs")
    print(", ".join(f"{topic} {minutes:.0f}" for topic, minutes in topics.items()))
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    lists, runs, sharing = (commands.add_parser(name) for name in ("list", "next", "beside"))
    for command in (lists, runs, sharing):
        command.add_argument("--results", type=Path, default=Path("results"))
        command.add_argument("--only", nargs="+", default=[], metavar="TOPIC", choices=sorted({i.topic for i in QUEUE}))
    lists.set_defaults(act=show)
    for command in (runs, sharing):
        command.add_argument("--seconds", type=float, default=560.0, help="begin nothing that does not fit into this")
        command.add_argument("--pack", type=Path, default=None, help="folder for archives of everything that is new")
        command.add_argument("--scale", default="paper", choices=["tiny", "paper"])
        command.add_argument("--work", type=Path, default=None, help="folder for data and runs; by default temporary")
    runs.add_argument("--print", action="store_true", help="print the commands and run nothing")
    runs.set_defaults(act=run_next)
    sharing.add_argument("--jobs", type=int, default=8, help="processes at a time")
    sharing.add_argument("--slowdown", type=float, default=2.0, help="of a run beside the others, to plan by")
    sharing.set_defaults(act=run_beside)
    return run_command(parser)


if __name__ == "__main__":
    sys.exit(main())
