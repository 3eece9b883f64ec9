"""The pictures of docs/gallery.md: simulate each equation and paint it, as a looping film where it has two axes.

    python -m lab.gallery.films [NAME …]        a few minutes on one core; writes docs/images/gallery/NAME.webp

Of an equation on one axis position runs to the right and time upwards. Each picture is at most `MOST_BYTES` large.
"""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

import matplotlib
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from factformer import catalog, simulate
from factformer.pdes import find_pde
from factformer.report.style import BODY
from lab import ROOT

FOLDER = ROOT / "docs" / "images" / "gallery"
MOST_BYTES = 150_000
SIDE = 320
"""Points along the longer side of a picture, about: fields are magnified by a whole factor."""
MILLISECONDS = 80
Picture = NDArray[np.uint8]


def started(name: str, shape: tuple[int, ...], seed: int = 0, **options: Any) -> Tensor:
    """A random start, on the box of these parameters."""
    pde = find_pde(name)
    initial = options.pop("initial", None)
    grid = pde.grid_of(shape, pde.parameters.parse(options))
    generator = torch.Generator().manual_seed(seed)
    return pde.sample_initial(grid, [generator], dtype=torch.float32, device="cpu", initial=initial)


def solved(name: str, shape: tuple[int, ...], frames: int, frame_dt: float, seed: int = 0, **options: Any) -> Tensor:
    """``(frame, *grid, channel)``; ``before`` is the time that passes first, ``initial`` the kind of start."""
    before = options.pop("before", 0.0)
    state = started(name, shape, seed, **options)
    options.pop("initial", None)
    if before:
        state = simulate(name, state, 2, before, **options)[:, -1, ..., : state.shape[-1]]
    return simulate(name, state, frames, frame_dt, **options)[0]


def painted(
    values: Tensor, colours: str, limits: tuple[float, float] | None = None, body: Tensor | None = None
) -> Picture:
    """``(frame, right, up)`` → ``(frame, down, right, 3)``, magnified; ``body`` is painted grey."""
    low, high = limits or (float(values.min()), float(values.max()))
    scaled = ((values - low) / (high - low)).clamp(0, 1).numpy()
    pictures = (255 * matplotlib.colormaps[colours](scaled)[..., :3]).astype(np.uint8)
    if body is not None:
        pictures[:, body.numpy()] = int(BODY[1:3], 16)
    pictures = pictures.swapaxes(1, 2)[:, ::-1]
    factor = max(1, round(SIDE / max(pictures.shape[1:3])))
    size = (factor * pictures.shape[2], factor * pictures.shape[1])
    larger = (Image.fromarray(picture).resize(size, Image.Resampling.BICUBIC) for picture in pictures)
    return np.stack([np.asarray(picture) for picture in larger])


def about_zero(values: Tensor, share: float = 1.0) -> tuple[float, float]:
    """Colour limits that are symmetric about zero."""
    largest = share * float(values.abs().max())
    return -largest, largest


def there_and_back(frames: Picture) -> Picture:
    """A film without a jump where it starts again."""
    return np.concatenate([frames, frames[-2:0:-1]])


def space_and_time(frames: Tensor, colours: str = "RdBu_r") -> Picture:
    """One picture of an equation on one axis: ``(frame, point)``, time upwards."""
    return painted(frames.T[None], colours, about_zero(frames) if colours == "RdBu_r" else None)


def burgers() -> Picture:
    return space_and_time(solved("burgers", (320,), 320, 0.015, seed=3)[..., 0])


def kuramoto_sivashinsky() -> Picture:
    return space_and_time(solved("kuramoto_sivashinsky", (320,), 320, 0.5, extent=100.0, before=60.0)[..., 0])


def korteweg_de_vries() -> Picture:
    return space_and_time(solved("korteweg_de_vries", (160,), 160, 0.0125, seed=1)[..., 0], "magma")


def advection_diffusion() -> Picture:
    frames = solved("advection_diffusion", (80, 80), 32, 2 * math.pi / 32, seed=1, viscosity=0.004)[..., 0]
    return painted(frames, "RdBu_r", about_zero(frames, 0.8))


def fisher_kpp() -> Picture:
    frames = solved("fisher_kpp", (80, 80), 24, 0.15, seed=2, viscosity=0.003)[..., 0]
    return there_and_back(painted(frames, "viridis", (0, 1)))


def gray_scott() -> Picture:
    frames = solved("gray_scott", (108, 108), 24, 75.0, seed=1, extent=1.1, dt=2.0)[..., 1]
    return there_and_back(painted(frames, "magma", (0, 0.4)))


def swift_hohenberg() -> Picture:
    frames = solved("swift_hohenberg", (80, 80), 24, 1.25, seed=1, dt=0.125)[..., 0]
    return there_and_back(painted(frames, "viridis", (-1.2, 1.8)))


def cahn_hilliard() -> Picture:
    frames = solved("cahn_hilliard", (96, 96), 20, 0.3, seed=1, interface=0.003, dt=1 / 32, before=1.0)[..., 0]
    return painted(frames, "RdBu_r", (-1, 1))


def kolmogorov_flow() -> Picture:
    frames = solved("kolmogorov_flow", (96, 96), 32, 1 / 16, before=3.0)[..., 0]
    return painted(frames, "RdBu_r", (-16, 16))


def navier_stokes() -> Picture:
    frames = solved("navier_stokes", (80, 80), 32, 0.6, seed=1, viscosity=1e-4)[..., 0]
    return there_and_back(painted(frames, "RdBu_r", (-3, 3)))


def isotropic_turbulence() -> Picture:
    frames = solved("isotropic_turbulence", (40, 40, 40), 24, 0.03, seed=0, dt=0.01, viscosity=0.01)
    return painted(frames[:, :, :, 0, 1], "RdBu_r", (-4, 4))


def smoke_buoyancy() -> Picture:
    """The density in the middle plane."""
    frames = solved("smoke_buoyancy", (40, 40, 40), 24, 0.75, seed=1)
    return there_and_back(painted(frames[:, :, 20, :, 0], "magma", (0, 2.5)))


def darcy_flow() -> Picture:
    """The coefficient and, beside it, the solution."""
    coefficient = started("darcy_flow", (141, 141), seed=1)
    solution = simulate("darcy_flow", coefficient)[0, 0, ..., 0]
    left = painted(coefficient[0, ..., 0][None], "cividis")
    right = painted(solution[None], "viridis")
    gap = np.full((1, left.shape[1], 8, 3), 255, np.uint8)
    return np.concatenate([left, gap, right], axis=2)


def obstacle_flow() -> Picture:
    """Vorticity; the bodies are grey."""
    pde, generator = find_pde("obstacle_flow"), torch.Generator().manual_seed(8)
    grid = pde.problem(96).grid
    mask = pde.sample_known(grid, [generator], 1, 1.0, dtype=torch.float32, device="cpu").mask
    assert mask is not None
    state = pde.sample_initial(grid, [generator], dtype=torch.float32, device="cpu")
    options: dict[str, Any] = {"mask": mask, "viscosity": 0.003, "penalisation": 5e-3}
    state = simulate(pde, state, 2, 10.0, **options)[:, -1]
    flow = simulate(pde, state, 32, 0.15, **options)[0]
    slopes = [(flow.roll(-1, 1 + m) - flow.roll(1, 1 + m)) / (2 * grid.spacing(m)) for m in range(2)]
    return painted(slopes[0][..., 1] - slopes[1][..., 0], "RdBu_r", (-6, 6), body=~mask[0].bool())


def vlasov_poisson() -> Picture:
    """Two streams of electrons roll up in phase space."""
    frames = solved("vlasov_poisson", (96, 192), 30, 1.0, seed=2, initial="two_stream", before=6.0)
    return painted(frames[:, :, 48:144, 0], "magma", (0, 0.6))


FILMS: Mapping[str, Callable[[], Picture]] = {
    film.__name__: film
    for film in (
        advection_diffusion,
        burgers,
        cahn_hilliard,
        darcy_flow,
        fisher_kpp,
        gray_scott,
        isotropic_turbulence,
        kolmogorov_flow,
        korteweg_de_vries,
        kuramoto_sivashinsky,
        navier_stokes,
        obstacle_flow,
        smoke_buoyancy,
        swift_hohenberg,
        vlasov_poisson,
    )
}


def encoded(frames: Picture) -> bytes:
    """WebP of the best quality that fits; smaller where none does, and then with every other frame."""
    for every, share, quality in product((1, 2), (1.0, 0.75, 0.6), (75, 40, 20)):
        size = (round(share * frames.shape[2]), round(share * frames.shape[1]))
        images = [Image.fromarray(frame).resize(size, Image.Resampling.LANCZOS) for frame in frames[::every]]
        buffer = io.BytesIO()
        more = {"save_all": True, "append_images": images[1:], "duration": every * MILLISECONDS, "loop": 0}
        images[0].save(buffer, format="WEBP", quality=quality, method=4, **(more if len(images) > 1 else {}))
        if buffer.tell() <= MOST_BYTES:
            return buffer.getvalue()
    raise ValueError(f"{len(frames)} frames of {frames.shape[1:3]} points do not fit into {MOST_BYTES} bytes")


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in names or catalog.names("pdes"):
        data = encoded(FILMS[name]())
        (FOLDER / f"{name}.webp").write_bytes(data)
        print(f"{name}: {len(data) // 1024} KB", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
