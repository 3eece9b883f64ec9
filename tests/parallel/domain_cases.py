"""What the processes of a test of domain parallelism do: the same network whole and cut, forward and backward.

``python domain_cases.py RENDEZVOUS RANK SIZE all|some``: the first process prints the largest differences as JSON.
``some`` takes one cut of each grid and model, with a mask or without, in turn.
"""

import json
import sys
from datetime import timedelta
from itertools import product

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from factformer import Batch, Field, Grid, Problem, build_surrogate
from factformer.nn import FactorizedAttention
from factformer.nn.convolution import Convolution
from factformer.parallel import traffic
from factformer.parallel.attaching import cut_multiples
from factformer.parallel.collectives import sent_bytes
from factformer.parallel.part import GridPart

PERIODIC, WALLS = (True,) * 3, (False, True, False)
SMALL = {"dim": 8, "depth": 2}
ATTENTION = {**SMALL, "heads": 2, "head_dim": 4, "kernel_dim": 4}
MODELS = {
    "factformer": ATTENTION,
    "factformer_plus": ATTENTION,
    "dilated_resnet": {**SMALL, "norm_groups": 2, "dilations": [1, 3]},
    "unet": {"dim": 8, "depth": 1, "multipliers": [1, 2, 1]},
    "factformer_plus in the dense order": {**ATTENTION, "kernel_dim": 16},
    "factformer_plus with patches": {**ATTENTION, "patch": 2},
    "factformer_plus in levels": {**ATTENTION, "depth": 3, "levels": 2},
}
GRIDS = {
    "line": ((17,), PERIODIC),
    "walled line": ((19,), WALLS),
    "plane": ((13, 10), PERIODIC),
    "walled plane": ((14, 9), WALLS),
    "box": ((9, 6, 8), PERIODIC),
    "walled box": ((8, 5, 9), WALLS),
}


def cuts(num_axes, size):
    """The ways to cut a grid for so many processes: one axis, the last one, two of them."""
    found = [tuple(size if m == axis else 1 for m in range(num_axes)) for axis in {0, num_axes - 1}]
    if num_axes > 1 and size == 4:
        found.append((2, 2, *[1] * (num_axes - 2)))
    return found


def largest_differences(model, options, shape, periodic, cut, masked, boundary):
    """Of the prediction and of the gradients of weights and context, relative to the largest value."""
    num_axes = len(shape)
    wraps = periodic[:num_axes]
    grid = Grid(shape, [1.0 + m for m in range(num_axes)], wraps)
    kind = "periodic" if all(wraps) else boundary
    problem = Problem(
        "cut", grid, (Field("u", 2),), parameters=("speed",), num_context_frames=2, boundary=kind, masked=masked
    )
    torch.manual_seed(1)
    surrogate = build_surrogate(problem, model, marching_steps=2, **options).double()
    frames = torch.randn(2, 2, *shape, 2, dtype=torch.float64)
    target = torch.randn(2, 2, *shape, 2, dtype=torch.float64)
    numbers = torch.rand(2, 1, dtype=torch.float64)
    mask = torch.rand(2, *shape) > 0.3 if masked else None
    whole = prediction_and_gradients(surrogate, Batch(frames, parameters=numbers, mask=mask), target, grid)
    part = GridPart.of(grid, init_device_mesh("cpu", cut), cut_multiples(surrogate))
    mine = Batch(part.cut(frames, 2).clone(), parameters=numbers, mask=None if mask is None else part.cut(mask, 1))
    cut_up = prediction_and_gradients(surrogate, mine, part.cut(target, 2), part)
    assert torch.allclose(part.put_together(cut_up[0], 2), whole[0], rtol=0, atol=1e-9)
    differences = [relative(cut_up[0], part.cut(whole[0], 2)), relative(cut_up[1], part.cut(whole[1], 2))]
    for ours, theirs in zip(cut_up[2], whole[2], strict=True):
        dist.all_reduce(ours)  # the loss is a sum over processes, so the gradient of a weight is one too
        differences.append((ours - theirs).abs().max().item() / max(theirs.abs().max().item(), 1e-3))
    return max(differences)


def relative(ours, theirs):
    return (ours - theirs).abs().max().item() / theirs.abs().max().item()


def prediction_and_gradients(surrogate, batch, target, grid):
    batch = batch._replace(context=batch.context.detach().clone().requires_grad_())
    surrogate.zero_grad()
    predicted = surrogate(batch, 2, grid)
    (predicted * target).sum().backward()
    weights = [p.grad.clone() if p.grad is not None else torch.zeros_like(p) for p in surrogate.parameters()]
    return predicted.detach(), batch.context.grad.clone(), weights


def bytes_given_away(size, kernel_dim):
    """What a layer of attention and a convolution exchange in one call on a plane, and what the formula says."""
    batch, first, second, dim, heads, head_dim = 2, 4 * size, 6, 8, 2, 4
    grid = Grid((first, second), 1.0, True)
    part = GridPart.of(grid, init_device_mesh("cpu", (size, 1)), [1, 1])
    attention = FactorizedAttention(2, dim, heads, head_dim, kernel_dim).double()
    convolution = Convolution(("periodic", "periodic"), dim, dim, 5).double()
    u = part.cut(torch.randn(batch, first, second, dim, dtype=torch.float64), 1)
    sent_bytes.clear()
    with torch.no_grad():
        attention(u, part)
        convolution(u, part)
    layer = traffic.attention(grid.shape, 0, size, dim, heads, head_dim, kernel_dim)
    values = traffic.added(layer, traffic.halo(dim, 2, second))
    return dict(sent_bytes), {kind: 8 * batch * count for kind, count in values.items()}


def main(rendezvous, rank, size, extent):
    dist.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=size, timeout=timedelta(seconds=120)
    )
    found = {}
    for row, (model, options) in enumerate(MODELS.items()):
        for column, (name, (shape, periodic)) in enumerate(GRIDS.items()):
            if model == "unet":  # three levels: cuts at multiples of four points
                shape = (2 * shape[0] + 5, *shape[1:])
            if "patch" in options:
                shape = tuple(2 * points - (not wraps) for points, wraps in zip(shape, periodic, strict=False))
            ways = list(product(enumerate(cuts(len(shape), size)), (False, True)))
            for (number, cut), masked in ways if extent == "all" else [ways[(row + column) % len(ways)]]:
                if model == "unet" and any(-(-points // 4) < parts for points, parts in zip(shape, cut, strict=True)):
                    continue
                boundary = ("zero", "reflect")[number % 2]
                key = f"{model}, {name}, {'x'.join(map(str, cut))}{', masked' * masked}"
                found[key] = largest_differences(model.split()[0], options, shape, periodic, cut, masked, boundary)
    for kernel_dim, kinds in ((4, {"reduce", "halo"}), (64, {"reduce", "halo", "gather", "ring"})):
        counted, expected = bytes_given_away(size, kernel_dim)
        assert counted == expected, (counted, expected)
        assert set(counted) == kinds, counted
    if rank == 0:
        print(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
