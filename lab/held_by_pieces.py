"""What pieces of a grid hold while they wait for their turn, and what goes to and from the device, per point.

    python -m lab.held_by_pieces --out results/cpu/pieces.json

Counts the fields that `factformer.parallel.turns` puts away, for the paper's network for volumes. They grow with the
number of points, so that a small grid tells it.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from factformer.evaluation.cost import random_batch
from factformer.evaluation.provenance import provenance, write_json
from factformer.evaluation.timing import PRECISIONS, autocast
from factformer.grid import Grid
from factformer.parallel.turns import HeldFields, in_pieces
from factformer.problem import Field, Problem
from factformer.recipes import build
from factformer.surrogate import build_surrogate

SHAPE, PIECES = (512, 6, 6), 8


class Counted:
    """Bytes that are away now, the most that were, and all that moved."""

    def __init__(self) -> None:
        self.now = self.most = self.moved = self.meetings = 0

    def put_away(self, held: HeldFields) -> None:
        put_away(held)
        size = sum(copy.nbytes() for _, copy in held._away)
        self.now, self.moved, self.meetings = self.now + size, self.moved + size, self.meetings + 1
        self.most = max(self.most, self.now)

    def bring_back(self, held: HeldFields) -> None:
        size = sum(copy.nbytes() for _, copy in held._away)
        self.now, self.moved = self.now - size, self.moved + size
        bring_back(held)


put_away, bring_back = HeldFields.put_away, HeldFields.bring_back


def measured(precision: str) -> dict[str, Any]:
    """Bytes per point of one call that predicts one frame of one sample."""
    model = build("turbulence", "paper", []).model
    problem = Problem("volume", Grid(SHAPE, 1.0, True), (Field("velocity", 3), Field("pressure")))
    surrogate = build_surrogate(problem, model, marching_steps=1).eval()
    batch, counted = random_batch(surrogate, 1, 1), Counted()
    with (
        mock.patch.object(HeldFields, "put_away", lambda held: counted.put_away(held)),
        mock.patch.object(HeldFields, "bring_back", lambda held: counted.bring_back(held)),
        torch.no_grad(),
        autocast(torch.device("cpu"), precision),
        in_pieces(surrogate, PIECES, offload=True),
    ):
        surrogate(batch)
    points = problem.grid.num_points
    return {
        "precision": precision,
        "model": model.model_dump(),
        "held_bytes_per_point": counted.most / points,
        "moved_bytes_per_point": counted.moved / points,
        "waits_of_a_piece": counted.meetings / PIECES,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    began = time.perf_counter()
    torch.manual_seed(0)
    result = {
        "analysis": "fields of waiting pieces",
        "grid": list(SHAPE),
        "pieces": PIECES,
        "rows": [measured(precision) for precision in PRECISIONS],
    }
    seconds = time.perf_counter() - began
    write_json(options.out, result | provenance(seed=0, seconds=seconds, device=torch.device("cpu")))


if __name__ == "__main__":
    main()
