"""Roll-outs of small networks on whole grids, to be held against those on cut ones.

``python prediction_cases.py RENDEZVOUS RANK SIZE`` predicts with several processes together: the first one prints the
largest differences as JSON.
"""

import json
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

from factformer import Batch, Field, Grid, Problem, build_surrogate, rollout
from factformer.errors import NonFinite
from factformer.parallel.together import together

ATTENTION = {"dim": 8, "depth": 2, "heads": 2, "head_dim": 4, "kernel_dim": 4}
PERIODIC, WALLS = (True, True), (False, True)
CASES = {
    "factformer in the dense order": ("factformer", {**ATTENTION, "kernel_dim": 16}, (19, 12), WALLS, True),
    "factformer_plus with patches": ("factformer_plus", {**ATTENTION, "patch": 2}, (22, 16), PERIODIC, True),
    "factformer_plus on a square": ("factformer_plus", ATTENTION, (9, 9), PERIODIC, False),
    "dilated_resnet": ("dilated_resnet", {"dim": 8, "norm_groups": 2, "dilations": [1, 3]}, (13, 9), WALLS, True),
    "unet": ("unet", {"dim": 8, "depth": 1, "multipliers": [1, 2, 1]}, (32, 14), PERIODIC, False),
}
NUM_FRAMES = 4


def case(name, dtype=torch.float64):
    """A surrogate and a batch with all that a problem may have."""
    model, options, shape, periodic, masked = CASES[name]
    boundary = "periodic" if all(periodic) else "reflect"
    grid = Grid(shape, (1.0, 2.0), periodic)
    fields = {"state": (Field("u", 2),), "static": (Field("a"),), "forcing": (Field("f"),), "parameters": ("speed",)}
    problem = Problem("cut", grid, **fields, num_context_frames=2, boundary=boundary, masked=masked)
    torch.manual_seed(1)
    surrogate = build_surrogate(problem, model, marching_steps=2, **options).to(dtype).eval()
    batch = Batch(
        context=torch.randn(2, 2, *shape, 2, dtype=dtype),
        static=torch.randn(2, *shape, 1, dtype=dtype),
        forcing=torch.randn(2, 2 + NUM_FRAMES, *shape, 1, dtype=dtype),
        parameters=torch.rand(2, 1, dtype=dtype),
        mask=torch.rand(2, *shape) > 0.3 if masked else None,
    )
    return surrogate, batch


@torch.no_grad()
def predicted(surrogate, batch):
    return torch.stack(list(rollout(surrogate, batch, NUM_FRAMES)), dim=1)


def difference(ours, theirs):
    """The largest one, relative to the largest value."""
    return (ours - theirs).abs().max().item() / theirs.abs().max().item()


def main(rendezvous, rank, size):
    dist.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=size, timeout=timedelta(seconds=120)
    )
    found = {}
    for name in CASES:
        for dtype in (torch.float64, torch.float32):
            surrogate, batch = case(name, dtype)
            whole = predicted(surrogate, batch) if rank == 0 else None
            with together(surrogate) as first:
                if first:
                    found[f"{name}, {dtype}"] = difference(predicted(surrogate, batch), whole)
                    spoiled = batch._replace(context=batch.context * float("nan"))
                    try:
                        predicted(surrogate, spoiled)
                    except NonFinite:  # the others are not asked, and answer the next call
                        assert torch.isfinite(predicted(surrogate, batch)).all()
            assert surrogate.implementation is None
    if rank == 0:
        print(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
