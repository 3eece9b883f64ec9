"""What the processes of a test of cut generation do: ``python cut_generation.py RENDEZVOUS RANK SIZE OUT``.

The last line that the first process prints is what its processes found, as JSON.
"""

import json
import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from factformer.data import generate
from factformer.data.generate import ranks
from factformer.errors import UserError
from factformer.pdes import find_pde

FLOW = {"preset": "tiny", "splits": ["train"], "trajectories": 3, "batch_size": 2}
SETTINGS = ["forcing_wavenumber=4", "reynolds=50..200", "num_frames=3", "warmup=0.0625"]
BOX = {"preset": "tiny", "splits": ["train"], "trajectories": 2, "resolution": 13, "simulation_resolution": 16}
BURGERS = {
    "preset": "tiny",
    "splits": ["test"],
    "trajectories": 1,
    "resolution": 9,
    "simulation_resolution": 11,
    "settings": ["num_axes=3", "num_frames=3", "warmup=0"],
}
DATASETS = {
    "flow": ("kolmogorov_flow", {**FLOW, "settings": SETTINGS}, None),
    "points": (
        "kolmogorov_flow",
        {**FLOW, "resolution": 24, "simulation_resolution": 48, "settings": [*SETTINGS, "downsampling=points"]},
        None,
    ),
    "slabs": ("isotropic_turbulence", {**BOX, "settings": ["num_frames=3", "dt=0.01"]}, (4, 1, 1)),
    "pencils": ("isotropic_turbulence", {**BOX, "settings": ["num_frames=3", "dt=0.01"]}, (2, 2, 1)),
    "box": ("burgers", BURGERS, (2, 2, 1)),
}


class Explodes(type(find_pde("burgers"))):
    """The last point of the second trajectory of the second batch is lost in frame 1; only one process holds it."""

    cuttable = True

    def frames(self, initial, num_frames, frame_dt, parameters, grid=None):
        for index, frame in enumerate(super().frames(initial, num_frames, frame_dt, parameters, grid)):
            corner = grid is None or all(
                own.stop == size for own, size in zip(grid.slices, grid.whole.shape, strict=True)
            )
            if index == 1 and corner and len(initial) == 1:
                frame = frame.clone()
                frame[(0, *[-1] * (frame.ndim - 1))] = torch.nan
            yield frame


def made(name, out, domain):
    equation, options, cut = DATASETS[name]
    before = ranks.cut_for
    if cut is not None:
        ranks.cut_for = lambda shape, processes: cut
    generate(equation, out / name, domain=domain, **options)
    ranks.cut_for = before


def main(rendezvous, rank, size, out):
    dist.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=size, timeout=timedelta(seconds=120)
    )
    os.environ.update(WORLD_SIZE=str(size), RANK=str(rank))
    for name in DATASETS:
        made(name, out / "cut", size)
    made("flow", out / "teams", size // 2)
    try:
        options = {**BURGERS, "resolution": 16, "simulation_resolution": 16, "trajectories": 3, "batch_size": 2}
        generate(Explodes(), out / "bad", domain=size, **{**options, "settings": ["num_axes=2", "num_frames=3"]})
        said = ""
    except UserError as error:
        said = str(error)
    found = [None] * size
    dist.all_gather_object(found, said)
    if rank == 0:
        print(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
