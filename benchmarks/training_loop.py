"""What the training loop costs beyond the training step, and how long it waits for data.

    python benchmarks/training_loop.py [--recipe kolmogorov --scale small --device cpu --out FILE]

Blocks of updates of the whole loop (feeding, schedule, curriculum, weight average, log lines) alternate with
blocks of bare forward + backward + optimiser on one fixed batch; both are reported as the median of their
blocks, and as a ratio, in one run. Frames are random: the time does not depend on their values.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from factformer import recipes
from factformer.data.convert import convert
from factformer.data.dataset import ArrayDataset, Dataset
from factformer.data.store import open_dataset
from factformer.evaluation.provenance import provenance
from factformer.training.launch import wanted_problem
from factformer.training.loop.machine import Machine, start
from factformer.training.loop.trainer import Trainer
from factformer.training.runfolder.folder import RunFolder
from factformer.training.runfolder.reporting import Reporter


def build_trainer(arguments: argparse.Namespace, residence: str, folder: Path) -> Trainer:
    """A trainer of the recipe on random frames, past curriculum and with all bookkeeping on."""
    experiment = recipes.build(
        arguments.recipe,
        arguments.scale,
        [
            f"data.residence={residence}",
            "training.updates=1000000",
            "protocol.curriculum=0",
            "training.ema_decay=0.999",
            "protocol.pushforward=0",
            "training.checkpoint_every=1000000",
            *arguments.set,
        ],
    )
    problem = wanted_problem(experiment)
    generator = torch.Generator().manual_seed(0)
    shape = (arguments.trajectories, arguments.frames, *problem.grid.shape)
    frames = torch.randn(*shape, problem.num_state_channels, generator=generator)
    dataset: Dataset = ArrayDataset(frames, problem)
    if residence == "stream":  # from a file, as it is when frames do not fit into memory
        np.save(folder.with_name("frames.npy"), frames.numpy())
        file = convert(
            folder.with_name("frames.npy"),
            folder.with_name("train.hdf5"),
            experiment.problem,
            resolution=experiment.data.resolution,
        )
        dataset = open_dataset(file)
    fabric = start(Machine(arguments.device), experiment.training.precision)
    run = RunFolder(folder)
    run.create(experiment, "benchmark")
    trainer = Trainer(experiment, dataset, None, fabric, run, Reporter())
    trainer.first_update = 0
    trainer.batches = trainer.feed.batches(1)
    trainer.clock.start(0.0)
    return trainer


def bare_updates(trainer: Trainer) -> Callable[[int], None]:
    """Forward, backward, clipping and optimiser on one batch, without Fabric and without bookkeeping."""
    window = next(trainer.feed.batches(1))
    plan = trainer.protocol.plan(1, 0.5)
    optimizer, autocast = trainer.state.optimizer, trainer.fabric.autocast

    def run(count: int) -> None:
        for _ in range(count):
            with autocast():
                loss, _ = trainer.protocol.loss(trainer.surrogate, window, plan)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trainer.parts.parameters, trainer.config.clip or float("inf"))
            optimizer.step()
            optimizer.zero_grad()

    return run


def loop_updates(trainer: Trainer) -> Callable[[int], None]:
    """Whole updates as `Trainer.run_to_end` does them."""

    def run(count: int) -> None:
        for _ in range(count):
            seconds, _ = trainer.agreement.largest(trainer.clock.seconds, 0.0)
            update = trainer.state.counters.update + 1
            trainer.advance(update, trainer.clock.progress(update, seconds))

    return run


def timed(run: Callable[[int], None], count: int, device: torch.device) -> tuple[float, float]:
    """Seconds per update of a block, by the clock and of the processor."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    begin, begin_processor = time.perf_counter(), time.process_time()
    run(count)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (time.perf_counter() - begin) / count, (time.process_time() - begin_processor) / count


def measure(arguments: argparse.Namespace, residence: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        trainer = build_trainer(arguments, residence, Path(folder) / "run")
        device = trainer.fabric.device
        bare, loop = bare_updates(trainer), loop_updates(trainer)
        bare(3)
        loop(3)
        trainer.seconds_waiting = 0.0
        bare_blocks, loop_blocks = [], []
        for _ in range(arguments.blocks):
            bare_blocks.append(timed(bare, arguments.updates, device))
            loop_blocks.append(timed(loop, arguments.updates, device))
        trainer.batches.close()
        pairs = list(zip(loop_blocks, bare_blocks, strict=True))
        return {
            "bare_ms": 1e3 * statistics.median(wall for wall, _ in bare_blocks),
            "loop_ms": 1e3 * statistics.median(wall for wall, _ in loop_blocks),
            "ratio": statistics.median(a[0] / b[0] for a, b in pairs),
            # On a computer with other work to do, the time of the processor is the steadier measure.
            "processor_ratio": statistics.median(a[1] / b[1] for a, b in pairs),
            "data_share": trainer.seconds_waiting / (arguments.updates * sum(wall for wall, _ in loop_blocks)),
            "batch_size": trainer.config.batch_size,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="kolmogorov")
    parser.add_argument("--scale", default="small")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--trajectories", type=int, default=4)
    parser.add_argument("--frames", type=int, default=40)
    parser.add_argument("--updates", type=int, default=10, help="updates per block")
    parser.add_argument("--blocks", type=int, default=7)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--out", type=Path, default=None)
    arguments = parser.parse_args()
    began = time.perf_counter()
    result = {
        "recipe": arguments.recipe,
        "scale": arguments.scale,
        "resident": measure(arguments, "device"),
        "streamed": measure(arguments, "stream"),
    }
    kind = Machine(arguments.device).kind
    result |= provenance(seed=0, seconds=time.perf_counter() - began, device=kind)
    text = json.dumps(result, indent=2)
    print(text)
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
