"""The pictures of docs/data.md: simulate each problem and draw it.

python -m lab.pages.data_pictures            about three minutes on two cores; writes docs/images/data-*.png
"""

from __future__ import annotations

from typing import Any

import matplotlib
import torch
from torch import Tensor

from factformer import simulate
from factformer.metrics import energy_spectrum
from factformer.pdes import find_pde
from lab import ROOT

matplotlib.use("Agg")
import matplotlib.pyplot as plt

FOLDER = ROOT / "docs" / "images"


def start(name: str, resolution: int, count: int = 1, seed: int = 0) -> Tensor:
    pde = find_pde(name)
    generators = [torch.Generator().manual_seed(seed + i) for i in range(count)]
    return pde.sample_initial(pde.problem(resolution).grid, generators, dtype=torch.float32, device="cpu")


def draw(axes: plt.Axes, values: Tensor, title: str, colours: str, limit: tuple[float, float] | None = None) -> None:
    """A plane with its first axis to the right and its second upwards."""
    low, high = limit or (float(values.min()), float(values.max()))
    axes.imshow(values.T, origin="lower", cmap=colours, vmin=low, vmax=high, interpolation="nearest")
    axes.set_title(title, fontsize=9)
    axes.set_xticks([])
    axes.set_yticks([])


def save(figure: plt.Figure, name: str) -> None:
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"data-{name}.png"
    figure.savefig(path, dpi=90, bbox_inches="tight")
    plt.close(figure)
    print(f"{path.name}: {path.stat().st_size // 1024} KB")


def kolmogorov_flow() -> None:
    frames = simulate("kolmogorov_flow", start("kolmogorov_flow", 192), 7, 1.0)[0, ..., 0]
    figure, axes = plt.subplots(1, 4, figsize=(9, 2.5))
    for plot, time in zip(axes, (0, 1, 2, 6), strict=True):
        draw(plot, frames[time], f"vorticity, t = {time}", "RdBu_r", (-18, 18))
    save(figure, "kolmogorov")


def isotropic_turbulence() -> None:
    resolution = 60
    initial = start("isotropic_turbulence", resolution)
    frames = simulate("isotropic_turbulence", initial, 3, 0.5, dt=0.005)[0]
    figure, axes = plt.subplots(1, 4, figsize=(10, 2.5), width_ratios=(1, 1, 1, 1.2))
    draw(axes[0], frames[0, :, :, 0, 1], "u at the start", "RdBu_r", (-4, 4))
    draw(axes[1], frames[2, :, :, 0, 1], "u, t = 1", "RdBu_r", (-4, 4))
    draw(axes[2], frames[2, :, :, 0, 0], "Bernoulli pressure, t = 1", "PuOr_r")
    for frame, label in ((0, "start"), (1, "t = 0.5"), (2, "t = 1")):
        spectrum = energy_spectrum(frames[frame : frame + 1, ..., 1:])[0]
        axes[3].loglog(range(1, len(spectrum)), spectrum[1:], label=label)
    wavenumbers = torch.arange(4.0, 16.0)
    axes[3].loglog(wavenumbers, 3 * wavenumbers ** (-5 / 3), "k:", label="k^(-5/3)")
    axes[3].set_title("energy spectrum", fontsize=9)
    axes[3].legend(fontsize=7)
    axes[3].tick_params(labelsize=7)
    axes[3].set_ylim(bottom=1e-4)
    save(figure, "turbulence")


def smoke_buoyancy() -> None:
    frames = simulate("smoke_buoyancy", start("smoke_buoyancy", 64), 29)[0]
    figure, axes = plt.subplots(1, 5, figsize=(10, 2.4))
    for plot, step in zip(axes, (0, 4, 9, 28), strict=False):
        draw(plot, frames[step, :, 32, :, 0], f"density, step {step}", "magma", (0, 2.5))
    draw(axes[4], frames[28, :, 32, :, 3], "vertical velocity, step 28", "RdBu_r", (-2, 2))
    save(figure, "smoke")


def darcy_flow() -> None:
    coefficient = start("darcy_flow", 141, count=2)
    solution = simulate("darcy_flow", coefficient)[:, 0]
    figure, axes = plt.subplots(1, 4, figsize=(9, 2.5))
    for sample in range(2):
        draw(axes[2 * sample], coefficient[sample, ..., 0], "coefficient: 3 and 12", "cividis")
        draw(axes[2 * sample + 1], solution[sample, ..., 0], "solution", "viridis")
    save(figure, "darcy")


LINES = {  # points, frames, frame interval, time that passes before: position to the right, time upwards
    "burgers": (256, 120, 0.02, 0.0),
    "kuramoto_sivashinsky": (192, 160, 0.5, 50.0),
    "korteweg_de_vries": (192, 160, 0.02, 0.0),
}
PLANES: dict[str, tuple[int, float, dict[str, Any]]] = {  # points, time, parameters
    "advection_diffusion": (96, 2.0, {}),
    "fisher_kpp": (128, 3.0, {"viscosity": 0.003}),
    "gray_scott": (160, 1500.0, {"extent": 1.5}),
    "swift_hohenberg": (96, 60.0, {"dt": 0.1}),
    "cahn_hilliard": (160, 4.0, {}),
}


def equations() -> None:
    """The semilinear equations and Vlasov-Poisson, one panel each."""
    figure, axes = plt.subplots(2, 5, figsize=(11, 4.9))
    panels = iter(axes.flat)
    for name, (size, count, frame_dt, before) in LINES.items():
        state = start(name, size)
        if before:
            state = simulate(name, state, 2, before)[:, -1]
        frames = simulate(name, state, count, frame_dt)[0, ..., 0]
        plot = next(panels)
        draw(plot, frames.T, name.replace("_", "-"), "RdBu_r", (-float(frames.abs().max()), float(frames.abs().max())))
        plot.set_aspect("auto")
    for name, (size, time, parameters) in PLANES.items():
        pde = find_pde(name)
        grid = pde.grid_of((size, size), pde.parameters.parse(parameters))
        state = pde.sample_initial(grid, [torch.Generator().manual_seed(1)], dtype=torch.float32, device="cpu")
        frames = simulate(name, state, 2, time, **parameters)[0, -1, ..., -1]
        draw(next(panels), frames, name.replace("_", "-"), "viridis")
    for kind, title, time in (("landau", "vlasov-poisson, damping", 5.0), ("two_stream", "two streams", 35.0)):
        pde = find_pde("vlasov_poisson")
        grid = pde.grid((128, 128))
        state = pde.sample_initial(
            grid, [torch.Generator().manual_seed(2)], dtype=torch.float32, device="cpu", initial=kind
        )
        draw(next(panels), simulate("vlasov_poisson", state, 2, time)[0, -1, ..., 0], title, "magma")
    figure.tight_layout()
    save(figure, "equations")


def navier_stokes() -> None:
    frames = simulate("navier_stokes", start("navier_stokes", 128), 5, 5.0, viscosity=1e-4)[0, ..., 0]
    figure, axes = plt.subplots(1, 4, figsize=(9, 2.5))
    for plot, number in zip(axes, (0, 1, 2, 4), strict=True):
        draw(plot, frames[number], f"vorticity, t = {5 * number}", "RdBu_r", (-3, 3))
    save(figure, "navier-stokes")


def obstacle_flow() -> None:
    """Three flows past bodies of their own, each with its viscosity: speed, and vorticity below it."""
    pde, viscosities = find_pde("obstacle_flow"), torch.tensor([0.002, 0.004, 0.01])
    grid = pde.problem(128).grid
    generators = [torch.Generator().manual_seed(seed) for seed in (8, 6, 2)]
    mask = pde.sample_known(grid, generators, 1, 1.0, dtype=torch.float32, device="cpu").mask
    assert mask is not None
    initial = pde.sample_initial(grid, generators, dtype=torch.float32, device="cpu")
    flows = simulate(pde, initial, 2, 14.0, mask=mask, viscosity=viscosities)[:, -1]
    figure, axes = plt.subplots(2, 3, figsize=(10, 3.6))
    for column, (flow, inside, viscosity) in enumerate(zip(flows, mask, viscosities.tolist(), strict=True)):
        slopes = [(flow.roll(-1, m) - flow.roll(1, m)) / (2 * grid.spacing(m)) for m in range(2)]
        vorticity = slopes[0][..., 1] - slopes[1][..., 0]
        outside = torch.where(inside, 1.0, torch.nan)
        draw(axes[0, column], flow.norm(dim=-1) * outside, f"speed, ν = {viscosity:g}", "viridis", (0, 1.6))
        draw(axes[1, column], vorticity * outside, "vorticity", "RdBu_r", (-6, 6))
    save(figure, "obstacle")


if __name__ == "__main__":
    for picture in (
        kolmogorov_flow,
        darcy_flow,
        smoke_buoyancy,
        isotropic_turbulence,
        equations,
        navier_stokes,
        obstacle_flow,
    ):
        picture()
