"""Peak memory of a training step of a process that holds a part of the grid: RENDEZVOUS RANK SIZE.

Prints the growth of the resident set in MB over what it was before the step.
"""

import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from factformer import Batch, Field, Grid, Problem, build_surrogate
from factformer.evaluation.memory import peak_memory
from factformer.parallel.part import GridPart

SHAPE = (1024, 96)
OPTIONS = {"dim": 48, "depth": 3, "heads": 4, "head_dim": 12, "kernel_dim": 12}


def main(rendezvous, rank, size):
    dist.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=size, timeout=timedelta(seconds=120)
    )
    grid = Grid(SHAPE, 1.0, True)
    torch.manual_seed(0)
    problem = Problem("memory", grid, (Field("u"),), num_context_frames=2)
    surrogate = build_surrogate(problem, "factformer", marching_steps=1, **OPTIONS)

    def step(on):
        batch = Batch(torch.randn(1, 2, *on.shape, 1))
        surrogate(batch, 1, on).square().mean().backward()

    step(grid.resample(16))  # what libraries and gradients of weights take is not the grid's
    part = grid if size == 1 else GridPart.of(grid, init_device_mesh("cpu", (size, 1)), [1, 1])
    with peak_memory("cpu") as peak:
        step(part)
    print(peak.megabytes)
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
