"""Training in a process of its own that can be killed at any moment."""

import json
import multiprocessing
from pathlib import Path

import torch
from safetensors.torch import load_file
from small_waves import tiny_experiment, wave_data

from factformer.training.runfolder import checkpoint

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["torch", "factformer.training.loop.train", "small_waves"])


def start_run(folder: Path, *, resume: bool = False, **options) -> multiprocessing.Process:
    """Begin or resume a run; not waited for."""
    process = CONTEXT.Process(target=_train, args=(folder, resume, options), daemon=True)
    process.start()
    return process


def finish_run(folder: Path, *, resume: bool = False, **options) -> None:
    process = start_run(folder, resume=resume, **options)
    process.join(120)
    assert process.exitcode == 0


def _train(folder, resume, options):
    from factformer.training.loop.train import train

    torch.set_num_threads(1)
    train(tiny_experiment(**options), *wave_data(), folder=folder, resume=resume)


def log(folder: Path) -> list[dict]:
    """The lines of the log without what a clock decides."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def assert_same_run(one: Path, other: Path) -> None:
    """The same bits in the log, the last checkpoint and the bundle."""
    assert log(one) == log(other)
    files = [(f / "checkpoints", f / "bundle" / "model.safetensors") for f in (one, other)]
    snapshots = [checkpoint.load(checkpoint.latest(folder)) for folder, _ in files]
    weights = [load_file(bundle) for _, bundle in files]
    for a, b in (weights, [snapshot.tensors for snapshot in snapshots]):
        assert a.keys() == b.keys()
        for name in a:
            assert torch.equal(a[name], b[name]), name
    for snapshot in snapshots:
        snapshot.state.pop("seconds")
        snapshot.state["last"].pop("seconds")
    assert snapshots[0].state == snapshots[1].state


def assert_all_checkpoints_load(folder: Path) -> int:
    """Every checkpoint is whole; the last update that is safe."""
    updates = [checkpoint.load(path).state["update"] for path in checkpoint.checkpoints(folder / "checkpoints")]
    return max(updates, default=0)
