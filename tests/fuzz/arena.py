"""Commands in forked children of one warm process: quick, and each may crash, hang, grow or be killed.

As a script this is the warm process: it reads one request a line and answers with one outcome a line.
`Arena` is the other end. A child is limited in time and memory, and can be made to stop dead at its n-th
file-system event (`events.stop_at`). Nothing outlives who started it: every child has a session of its own, all of
which is put down when the child ends; the warm process and its children go with their parents; every wait is bounded.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

SECONDS = 10.0
"""A command that takes longer hangs: all that are tried here are done in a fraction of a second. Where more processes
want to work than there are cores, each gets longer (`_patience`)."""
ANSWER_SECONDS = 120.0
"""The warm process takes this long at most to answer: some seconds for its imports on a busy computer, and a child."""
LONGEST_TEXT = 100_000
PR_SET_PDEATHSIG = 1
HARD_MEMORY = 4 * 2**30
"""More than this above the warm process is refused by the system, to protect the machine."""
RAW = 70
"""Exit code of a child out of which an exception escaped."""
KILLED = 137
WARM = (
    "factformer.cli.analyse",
    "factformer.cli.data",
    "factformer.cli.explore",
    "factformer.cli.report",
    "factformer.cli.train",
    "factformer.cli.benchmark",
    "factformer.data",
    "factformer.data.convert",
    "factformer.data.generate.run",
    "factformer.evaluation.inspection",
    "factformer.evaluation.run",
    "factformer.models.factformer",
    "factformer.pdes.kolmogorov_flow",
    "factformer.prediction",
    "factformer.protocols.latent_marching",
    "factformer.recipes.demo",
    "factformer.report.analysis",
    "factformer.report.html",
    "factformer.report.kernels",
    "factformer.training",
    "factformer.training.loop.train",
    "factformer.training.runfolder.trackers",
    "lightning_fabric",
    "matplotlib.pyplot",
    "rich.progress",
    "scipy.io",
)


@dataclass(frozen=True)
class Outcome:
    """How a command ended: exit code (or signal), seconds, memory above the warm process, what it wrote."""

    code: int
    signal: int
    seconds: float
    megabytes: float
    out: str
    err: str


class Arena:
    """The warm process; `run` sends it a command and waits for the outcome."""

    def __enter__(self) -> Self:
        source = Path(__file__).parents[2] / "src"
        paths = [str(source), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stdin.close()
        try:
            self._process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(SECONDS)
        self._process.stdout.close()

    def know(self, folder: Path) -> None:
        """Look at the undamaged HDF5 files of a folder once, in the warm process: its children need not."""
        files = [path.name for path in sorted(folder.iterdir()) if path.suffix in (".h5", ".hdf5")]
        outcome = self.run(files, folder, task="know")
        assert outcome.code == 0, outcome

    def run(self, words: Sequence[str], folder: Path, stop_at: int | None = None, task: str = "command") -> Outcome:
        """Run a command, or another ``task``, in ``folder``; `events` says what ``stop_at`` counts."""
        request = {"words": list(words), "folder": str(folder), "stop_at": stop_at, "task": task}
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        if not select.select([self._process.stdout], [], [], ANSWER_SECONDS)[0]:
            self._process.kill()
            raise TimeoutError(f"the warm process does not answer: {request}")
        answer = self._process.stdout.readline()
        if not answer:
            raise ChildProcessError(f"the warm process ended with code {self._process.wait(SECONDS)}: {request}")
        return Outcome(**json.loads(answer))


def _serve() -> None:
    import importlib

    _end_with_parent()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for name in WARM:
        importlib.import_module(name)
    import matplotlib.font_manager
    import torch

    torch.set_num_threads(1)
    matplotlib.font_manager.findfont("DejaVu Sans")
    baseline = 0.0
    for line in sys.stdin:
        request = json.loads(line)
        if not baseline:
            baseline = _attend({**request, "task": "nothing", "stop_at": None}, 0.0)["megabytes"]
        if request["task"] == "know":
            _know(request)
            request["task"] = "nothing"
        answers.write(json.dumps(_attend(request, baseline)) + "\n")
        answers.flush()


def _know(request: dict[str, Any]) -> None:
    from factformer.data.opening import require_readable

    require_readable([Path(request["folder"]) / name for name in request["words"]])


def _attend(request: dict[str, Any], baseline: float) -> dict[str, Any]:
    """Fork, wait, and put the child's whole process group down when its time is over."""
    folder = Path(request["folder"])
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        _become(request)
    descriptor = os.pidfd_open(child)
    in_time = bool(select.select([descriptor], [], [], _patience())[0])
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what it has started and left behind, and itself if its time is over
    os.close(descriptor)
    _, status, usage = os.wait4(child, 0)
    texts = {}
    for name in ("out", "err"):
        file = folder.with_name(f"{folder.name}.{name}")
        texts[name] = ""
        if file.is_file():
            with file.open("rb") as written:
                texts[name] = written.read(LONGEST_TEXT).decode("utf-8", "replace")
            file.unlink()
    return {
        "code": os.WEXITSTATUS(status) if os.WIFEXITED(status) else -1,
        "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) and in_time else 0,
        "seconds": time.monotonic() - began if in_time else float("inf"),
        "megabytes": usage.ru_maxrss / 1024 - baseline,
        **texts,
    }


def _patience() -> float:
    return SECONDS * min(max(os.getloadavg()[0] / (os.cpu_count() or 1), 1.0), ANSWER_SECONDS / SECONDS / 2)


def _become(request: dict[str, Any]) -> None:
    """In the child: run the task and leave without anything of the parent's clean-up."""
    code = RAW
    try:
        os.setsid()
        _end_with_parent()
        folder = Path(request["folder"])
        os.chdir(folder)
        _redirect(0, "/dev/null", os.O_RDONLY)
        for number, name in ((1, "out"), (2, "err")):
            _redirect(number, str(folder.with_name(f"{folder.name}.{name}")), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        size = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (size + HARD_MEMORY, size + HARD_MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if request["stop_at"] is not None:
            import events

            events.stop_at(request["stop_at"], folder)
        code = _TASKS[request["task"]](request["words"])
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _redirect(number: int, path: str, flags: int) -> None:
    descriptor = os.open(path, flags, 0o644)
    os.dup2(descriptor, number)
    os.close(descriptor)


def _command(words: list[str]) -> int:
    from factformer import cli

    sys.argv = ["factformer", *words]
    cli.main(words)
    return 0


def _read_plainly(words: list[str]) -> int:
    """Write every array that a file itself holds, as the library of its format reads it: ``[source, target.npz]``."""
    import h5py
    import numpy as np
    from scipy.io import loadmat

    source, target = words
    arrays: dict[str, Any] = {}
    if source.endswith(".npy"):
        arrays["array"] = np.load(source)
    elif source.endswith(".npz"):
        with np.load(source) as archive:
            arrays = {name: archive[name] for name in archive.files}
    elif source.endswith(".mat") and not h5py.is_hdf5(source):
        arrays = {name: value for name, value in loadmat(source).items() if isinstance(value, np.ndarray)}
    else:

        def visit(name: str, item: Any) -> None:
            if isinstance(item, h5py.Dataset) and not item.external and not item.is_virtual:
                arrays[name] = item[...]

        with h5py.File(source) as file:
            file.visititems(visit)
    kept = {str(index): value for index, value in enumerate(arrays.values()) if value.dtype.kind in "fiub"}
    np.savez(target, **kept)
    return 0


def _leave_a_child(words: list[str]) -> int:
    """End at once and leave a process behind that would live on; its number goes to standard output."""
    print(subprocess.Popen(["sleep", "600"]).pid)
    return 0


_TASKS: dict[str, Callable[[list[str]], int]] = {
    "command": _command,
    "read": _read_plainly,
    "leave": _leave_a_child,
    "nothing": lambda _: 0,
}

if __name__ == "__main__":
    _serve()
