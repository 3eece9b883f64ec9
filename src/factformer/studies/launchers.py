"""Where the runs of a study are executed: in this process, in several processes side by side, or on a Slurm cluster."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any, Literal, get_args

from factformer._support.extras import import_extra
from factformer._support.signals import handling
from factformer.config import unknown_name
from factformer.errors import UserError
from factformer.studies.runner import Ended, Say

Launcher = Literal["local", "slurm"]


def check_launcher(name: str) -> None:
    """Raise where there is no launcher of that name, or what it needs is missing."""
    if name not in get_args(Launcher):
        raise unknown_name("launcher", name, get_args(Launcher))
    if name == "slurm":
        import_extra("submitit", "slurm")
        if shutil.which("srun") is None:
            raise UserError(
                "the launcher 'slurm' needs Slurm, and there is no srun here: start it on a node of the "
                "cluster, or take --launcher local"
            )


class SideBySide:
    """Runs a number of processes at a time, each with a device of its own; they stop when this one is told to.

    They also end where this one is killed: each holds the other end of a pipe as its standard input, which the system
    closes with this process.
    """

    def __init__(self, jobs: int, say: Say) -> None:
        self.jobs, self.say = jobs, say
        self.processes: set[subprocess.Popen[bytes]] = set()
        self.stopping = threading.Event()
        self.slots = list(range(jobs))
        self.guard = threading.Lock()

    def run(self, file: Path, indices: Sequence[int], device: str | None) -> list[Ended]:
        """How the runs with these numbers ended."""
        with self._stopping_on_signals(), ThreadPoolExecutor(self.jobs) as pool:
            return list(pool.map(lambda index: self._run_one(file, index, device), indices))

    def _run_one(self, file: Path, index: int, device: str | None) -> Ended:
        if self.stopping.is_set():
            return Ended("no time", "interrupted")
        with self.guard:
            slot = self.slots.pop(0)
        try:
            with tempfile.TemporaryDirectory() as folder:
                answer = Path(folder) / "ended.json"
                words = [sys.executable, "-m", "factformer.studies.worker", str(file), str(index), str(answer)]
                with self.guard:
                    process = subprocess.Popen(
                        [*words, device or ""], env=_environment(slot, self.jobs), stdin=subprocess.PIPE
                    )
                    self.processes.add(process)
                    if self.stopping.is_set():  # told to stop while this process was being started
                        process.send_signal(signal.SIGTERM)
                with process:  # its pipe is closed at the end
                    code = process.wait()
                self.processes.discard(process)
                return _answer(answer, code)
        finally:
            with self.guard:
                self.slots.append(slot)

    def _stopping_on_signals(self) -> AbstractContextManager[None]:
        def stop(number: int, frame: FrameType | None) -> None:
            self.stopping.set()
            self.say("stopping; start again to resume")
            for process in list(self.processes):
                process.send_signal(signal.SIGTERM)

        return handling(stop)


def _environment(slot: int, jobs: int) -> dict[str, str]:
    """The environment of a process: one of the GPUs that this one sees, and a share of the cores."""
    values = dict(os.environ)
    import torch

    if torch.cuda.is_available():
        shown = values.get("CUDA_VISIBLE_DEVICES")
        devices = shown.split(",") if shown else [str(index) for index in range(torch.cuda.device_count())]
        values["CUDA_VISIBLE_DEVICES"] = devices[slot % len(devices)]
    values.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // jobs)))
    return values


def _answer(path: Path, code: int) -> Ended:
    """What a process said of its run; one that said nothing was killed."""
    if path.is_file():
        return Ended(**json.loads(path.read_text(encoding="utf-8")))
    return Ended("failed", f"its process ended with signal {-code}" if code < 0 else f"its process ended with {code}")


def run_on_cluster(file: Path, indices: Sequence[int], logs: Path, *, cluster: str = "slurm", jobs: int) -> list[Ended]:
    """Submit the runs through submitit, at most ``jobs`` at a time, and wait for them.

    Partition, memory and the like are those that the environment gives Slurm (``SBATCH_PARTITION``, …).
    """
    submitit = import_extra("submitit", "slurm")
    executor = submitit.AutoExecutor(folder=str(logs), cluster=cluster)
    options: dict[str, Any] = {"name": "factformer-study", "timeout_min": 60 * 24}
    if cluster == "slurm":
        options |= {"slurm_array_parallelism": jobs, "gpus_per_node": 1}
    executor.update_parameters(**options)
    submitted = executor.map_array(_run_submitted, [str(file)] * len(indices), list(indices))
    return [_cluster_answer(job) for job in submitted]


def _run_submitted(file: str, index: int) -> dict[str, Any]:
    from factformer.studies.worker import run_one

    return asdict(run_one(Path(file), index))


def _cluster_answer(job: Any) -> Ended:
    try:
        return Ended(**job.result())
    except Exception as error:
        return Ended("failed", f"job {job.job_id}: {str(error).strip().splitlines()[-1][:300]}")
