"""Several processes of one command on this computer: this one is the first and starts the others."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO

STARTER = "FACTFORMER_STARTED_BY"
SECONDS_TO_END = 10.0
"""For a process to end by itself, with its own message, when another one of the job has failed."""


@contextmanager
def several_processes(count: int) -> Iterator[None]:
    """Run the command in ``count`` processes, which find each other by the environment of ``torchrun``.

    Nothing is started where ``torchrun`` or a scheduler has done so already. When one of them fails, all end.
    """
    if "WORLD_SIZE" in os.environ or count == 1:
        if STARTER in os.environ:
            threading.Thread(target=_end_with, args=(int(os.environ[STARTER]),), daemon=True).start()
        yield
        return
    shared = {
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
    }
    others = _Others({**shared, STARTER: str(os.getpid())}, count)
    before = {name: os.environ.get(name) for name in (*shared, "RANK", "LOCAL_RANK")}
    os.environ.update(shared, RANK="0", LOCAL_RANK="0")
    try:
        with others:
            yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


class _Others:
    """The processes beside the first one. They say nothing, but for one that fails before the first does."""

    def __init__(self, environment: Mapping[str, str], count: int) -> None:
        self._over = threading.Event()
        self._errors: list[IO[bytes]] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        for rank in range(1, count):
            self._errors.append(tempfile.TemporaryFile())  # noqa: SIM115 - read after the process has ended
            self._processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", "factformer", *sys.argv[1:]],
                    env={**os.environ, **environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=self._errors[-1],
                )
            )

    def __enter__(self) -> None:
        threading.Thread(target=self._watch, daemon=True).start()

    def __exit__(self, kind: type[BaseException] | None, *details: object) -> None:
        self._over.set()
        self._end()
        if kind is None and (rank := self._failed()) is not None:
            raise RuntimeError(self._last_words(rank))

    def _watch(self) -> None:
        """End everything where another process has failed and the first one, which it leaves waiting, does not."""
        while not self._over.wait(0.2):
            rank = self._failed()
            if rank is not None and not self._over.wait(SECONDS_TO_END):
                print(f"factformer: {self._last_words(rank)}", file=sys.stderr, flush=True)
                for process in self._processes:
                    process.kill()
                os._exit(max(1, self._processes[rank - 1].returncode))

    def _failed(self) -> int | None:
        return next((rank for rank, process in enumerate(self._processes, start=1) if process.poll()), None)

    def _end(self) -> None:
        deadline = time.monotonic() + SECONDS_TO_END
        for process in self._processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _last_words(self, rank: int) -> str:
        self._errors[rank - 1].seek(0)
        lines = self._errors[rank - 1].read().decode(errors="replace").strip().splitlines()
        said = lines[-1].removeprefix("factformer: ") if lines else "it said nothing"
        return f"process {rank} of the job failed: {said}"


def _end_with(starter: int) -> None:
    """End this process when the one that started it is gone."""
    while os.getppid() == starter:
        time.sleep(1)
    os._exit(1)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
