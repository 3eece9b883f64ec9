"""One marching step after the other on its kernel, and the decoder behind them, against the formulas in float32.

    python -m lab.checks.marching_turns 32 --block 64             the loop of one turn that came out wrong
    python -m lab.checks.marching_turns 32 --no-tma --block 64    the same with tiles by pointers
    compute-sanitizer python -m lab.checks.marching_turns 32 --no-tma --block 64

Without ``--block`` the kernel takes as many latent channels at a time as it does in use. An illegal access takes its
process with it, so each variant is a command of its own. Results on an H200: results/speed/marching_one_turn_h200.json.
"""

from __future__ import annotations

import argparse
import json
import math
from typing import Any
from unittest import mock

import torch
from torch.nn import functional

from factformer import Field, Grid, Problem, build_surrogate
from factformer.kernels._triton.limits import FULL, MEDIUM, restricted
from factformer.kernels._triton.tiles import Tile
from factformer.kernels.march_decode import marching_forward
from factformer.kernels.march_decode.decoder_forward import decode
from factformer.kernels.march_decode.network import Network
from factformer.kernels.march_decode.op import Parameters
from lab.checks.common import DEVICE, relative

SHAPE, BATCH, STEPS = (40, 36), 2, 2
DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32


def errors(dim: int, tile: Tile, *, tma: bool, block: int | None) -> dict[str, object]:
    """Of each state, of the statistics of its groups of channels, and of the decoded fields."""
    torch.manual_seed(0)
    grid = Grid(SHAPE, 2 * math.pi, True)
    problem = Problem("marching", grid, (Field("a"),), num_context_frames=4)
    sizes: dict[str, Any] = {"dim": dim, "depth": 1, "heads": 2, "head_dim": 16, "kernel_dim": 16}
    surrogate = build_surrogate(problem, "factformer", marching_steps=STEPS, **sizes).to(DEVICE)
    decoder, eps = surrogate.decoder, surrogate.marching.norm.eps
    weights = Parameters.of(surrogate.marching, decoder)
    for tensor in weights:
        tensor.add_(0.1 * torch.randn_like(tensor))
    latent, network = weights.expand.shape[0], weights.weights
    field = torch.randn(BATCH, grid.num_points, dim, device=DEVICE)
    states = torch.full((1 + STEPS, BATCH, grid.num_points, latent), math.nan, device=DEVICE, dtype=DTYPE)
    states[0] = functional.linear(field, weights.expand, weights.expand_bias)
    taken = marching_forward.latent_block(latent) if block is None else block
    with (
        restricted(FULL if tma else MEDIUM),
        mock.patch.multiple(marching_forward, TILE=tile, SMALLER_TILE=tile, latent_block=lambda _: taken),
    ):
        folded = Network.fold(network, STEPS, eps, DTYPE)
        groups = len(weights.grouped)
        _, statistics = marching_forward.march(states, folded, None, groups, decoder.norm.eps)
        fields = decode(states, weights.layers(statistics, DTYPE))
    z, of_states = states[0].float(), []
    for step in range(STEPS):
        z = z + network.steps[step]
        normed = functional.layer_norm(z, (latent,), network.gain, network.bias, eps)
        hidden = functional.gelu(functional.linear(normed, network.first, network.first_bias))
        z = z + functional.linear(hidden, network.second, network.second_bias)
        of_states.append(relative(states[step + 1].float(), z))
    stored = states[1:].float()
    grouped = stored.view(STEPS * BATCH, -1, groups, latent // groups)
    spread = (grouped.var((1, 3), unbiased=False) + decoder.norm.eps).sqrt()
    expected = torch.stack([decoder(state.view(BATCH, *SHAPE, latent), grid) for state in stored], dim=1)
    return {
        "latent": latent,
        "block": taken,
        "states": of_states,
        "mean_of_groups": float((statistics[..., 0] - grouped.mean((1, 3))).abs().max()),
        "deviation_of_groups": float((statistics[..., 1] * spread - 1).abs().max()),
        "fields": relative(fields.float().view_as(expected), expected),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dim", type=int)
    parser.add_argument("--block", type=int, default=None, help="latent channels at a time")
    parser.add_argument("--no-tma", action="store_true", help="tiles by pointers")
    parser.add_argument("--points", type=int, default=128, help="points of a tile")
    parser.add_argument("--stages", type=int, default=3, help="pipeline stages")
    options = parser.parse_args()
    with torch.no_grad():
        tile = Tile(options.points, 4, options.stages)
        print(json.dumps(errors(options.dim, tile, tma=not options.no_tma, block=options.block)))


if __name__ == "__main__":
    main()
