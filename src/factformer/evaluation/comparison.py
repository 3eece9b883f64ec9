"""Our FactFormer against textbook formulations of it and against the floor of the chip, in one run.

Compiling the textbook's network takes up to a minute for each size and for each of inference and training. All of them
are compiled at the same time, each in a process of its own, which then waits until it is its turn to be measured:
nothing else runs on the device while a number is taken.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from factformer._support.documents import finite
from factformer._support.text import first_line
from factformer.config import unknown_name
from factformer.errors import UserError
from factformer.evaluation.baselines import (
    COMPILED,
    EAGER,
    OURS,
    SETTINGS,
    Runner,
    Setting,
    measure,
    prepare,
    runner_of,
)
from factformer.evaluation.provenance import provenance
from factformer.evaluation.timing import resolve_device

MODES = ("infer", "train")
Report = Callable[[dict[str, Any]], None]


def settings(names: Sequence[str] | None = None) -> list[Setting]:
    """The named rows of the table; all of them by default."""
    for name in names or ():
        if name not in SETTINGS:
            raise unknown_name("case", name, list(SETTINGS))
    return [SETTINGS[name] for name in names or SETTINGS]


def compare(
    rows: Sequence[Setting],
    *,
    ways: Sequence[str] = (EAGER, COMPILED, OURS),
    device: str | None = None,
    compile_seconds: float = 240.0,
    report: Report | None = None,
) -> dict[str, Any]:
    """The table: of every setting milliseconds and peak memory of each way, the floor, and our distance to it.

    What is not compiled after ``compile_seconds`` is left out.
    """
    began = time.perf_counter()
    target = resolve_device(device)
    if COMPILED in ways and target.type != "cuda":
        raise UserError("the compiled textbook is compared on a GPU: name another --device, or leave --compare out")
    place = target.type
    waiting: dict[tuple[str, str], _Child] = {}
    if COMPILED in ways:
        threads = max(2, 2 * (os.cpu_count() or 1) // (len(rows) * len(MODES)))
        waiting = {(c.name, m): _Child(c, m, place, threads) for c in rows for m in MODES}
    result = []
    try:
        if waiting and OURS in ways:
            for setting in rows:  # our kernels compile meanwhile
                _measure_here(OURS, setting, place, only_prepare=True)
        deadline = time.perf_counter() + compile_seconds
        for child in waiting.values():
            child.wait_until_ready(deadline)
        for setting in rows:
            row: dict[str, Any] = {"label": setting.name, "status": "ok", "batch_size": setting.batch}
            for way in ways:
                if way == COMPILED:
                    row[way] = {k: v for m in MODES for k, v in waiting.pop((setting.name, m)).measured().items()}
                else:
                    row[way] = _measure_here(way, setting, place)
            result.append(finite({**row, **_floor(setting, row.get(OURS, {}))}))
            if report is not None:
                report(result[-1])
    finally:
        for child in waiting.values():
            child.stop()
    seconds = time.perf_counter() - began
    return {"benchmark": "comparison", "rows": result, **provenance(seed=0, seconds=seconds, device=target)}


def _measure_here(way: str, setting: Setting, device: str, *, only_prepare: bool = False) -> dict[str, Any]:
    """Infer and train of one way; what does not fit into memory says so."""
    numbers: dict[str, Any] = {}
    runner: Runner | None = None
    try:
        runner = runner_of(way, setting, device)
        for mode in MODES:
            numbers[f"first_{mode}_s"] = prepare(runner, mode)
            if not only_prepare:
                numbers |= measure(runner, mode)
    except torch.OutOfMemoryError:
        numbers["status"] = "OOM"
    runner = None
    if device == "cuda":  # the next one, here or in another process, finds the memory empty
        gc.collect()
        torch.cuda.empty_cache()
    return numbers


def _floor(setting: Setting, ours: dict[str, Any]) -> dict[str, Any]:
    from factformer.kernels.estimates import floor_seconds

    floors = floor_seconds(setting.surrogate("cpu"), setting.batch, setting.steps)
    floor = {f"{mode}_ms": 1e3 * seconds for mode, seconds in zip(MODES, floors, strict=True)}
    distance = {mode: ours[f"{mode}_ms"] / floor[f"{mode}_ms"] for mode in MODES if f"{mode}_ms" in ours}
    return {"floor": floor, "distance": distance}


class _Child:
    """The compiled textbook in a process of its own: compiles, says so, waits for its turn, measures."""

    def __init__(self, setting: Setting, mode: str, device: str, threads: int) -> None:
        # A few compilers for each process: together they fill the machine.
        environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": str(threads), "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "factformer.evaluation.comparison"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
            env=environment,
        )
        self.heard: queue.Queue[dict[str, Any]] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()
        self.say({"setting": dataclasses.asdict(setting), "mode": mode, "device": device})
        self.trouble: dict[str, Any] | None = None

    def say(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it ended, which is heard of
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                self.heard.put(json.loads(line))
        self.heard.put({"status": "failed (its process ended)"})

    def hear(self, seconds: float) -> dict[str, Any]:
        try:
            return self.heard.get(timeout=max(seconds, 0.1))
        except queue.Empty:
            return {"status": "failed (not compiled in time)"}

    def wait_until_ready(self, deadline: float) -> None:
        heard = self.hear(deadline - time.perf_counter())
        if "status" in heard:
            self.trouble = heard
            self.stop()

    def measured(self) -> dict[str, Any]:
        if self.trouble is None:
            self.say({"go": True})
            self.trouble = self.hear(60.0)
        self.stop()
        return self.trouble

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def _child() -> None:
    task = json.loads(sys.stdin.readline())
    values = task["setting"]
    setting, mode = Setting(**{**values, "shape": tuple(values["shape"])}), task["mode"]
    numbers: dict[str, Any]
    try:
        runner = runner_of(COMPILED, setting, task["device"])
        seconds = _patiently(lambda: prepare(runner, mode))
        print(json.dumps({"ready": True}), flush=True)
        if not sys.stdin.readline():
            return  # whoever wanted to know is gone
        numbers = {f"first_{mode}_s": seconds, **measure(runner, mode)}
    except torch.OutOfMemoryError:
        numbers = {"status": "OOM"}
    except Exception as error:  # whatever a compiler says, the table goes on
        numbers = {"status": f"failed ({first_line(error)})"}
    print(json.dumps(finite(numbers)), flush=True)


def _patiently(call: Callable[[], float], patience: float = 60.0) -> float:
    """Wait for others to finish where memory is short: all these processes make their first calls on one device."""
    began = time.perf_counter()
    while True:
        try:
            seconds = call()
        except torch.OutOfMemoryError:
            if time.perf_counter() - began > patience:
                raise
            torch.cuda.empty_cache()
            time.sleep(2.0)
        else:
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            return seconds


if __name__ == "__main__":
    _child()
