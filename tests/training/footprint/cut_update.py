"""Forward and backward pass of an update on a grid cut over real processes: prints the bytes that each kind sent."""

import json
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch.multiprocessing import spawn

from factformer import Problem, build_surrogate
from factformer.parallel import collectives
from factformer.parallel.attaching import hold_part
from factformer.parallel.part import cut_window
from factformer.protocols import build_protocol
from factformer.training.experiment.definition import Experiment
from factformer.training.footprint.counted import blank_window
from factformer.training.loop.objective import Objective


def work(rank, task, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=task["processes"])
    wanted, problem = Experiment.parse(task["experiment"]), Problem.from_dict(task["problem"])
    protocol = build_protocol(wanted.protocol, problem)
    surrogate = build_surrogate(problem, wanted.model, marching_steps=protocol.steps_per_call).train()
    part = hold_part(surrogate, 1, task["processes"], "cpu")
    window = blank_window(problem, wanted.training.batch_size, protocol.window_length)
    window = window._replace(frames=torch.randn(window.frames.shape, generator=torch.Generator().manual_seed(0)))
    loss, _ = Objective(surrogate, protocol)(cut_window(window, part), protocol.whole_plan(0, 1.0))
    loss.backward()
    Path(folder, f"{rank}.json").write_text(json.dumps(collectives.sent_bytes), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    task = json.load(sys.stdin)
    with tempfile.TemporaryDirectory() as folder:
        spawn(work, (task, folder), nprocs=task["processes"])
        sent = [
            json.loads(Path(folder, f"{rank}.json").read_text(encoding="utf-8")) for rank in range(task["processes"])
        ]
    print(json.dumps(sent))
