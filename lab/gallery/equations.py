"""What the gallery says of each equation that its class does not: formula, what one sees, values worth trying."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

ANY_BOX = "the box; more of it holds more structures and needs more points"
SHORTER = "the solver's largest step; the default suits the presets"


class Card(NamedTuple):
    """One equation: title, formula (lines), what the picture shows, and good values by parameter."""

    title: str
    formula: str
    about: str
    good: Mapping[str, str] = {}


CARDS: Mapping[str, Card] = {
    "advection_diffusion": Card(
        "Advection and diffusion",
        "∂u/∂t + c·∇u = ν ∇²u",
        "A random field is carried across the box and smeared out. Every frame is exact.",
        {
            "velocity": "any sign; one number along every axis",
            "viscosity": "0.001 to 0.05; 0 carries the field alone",
            "extent": ANY_BOX,
        },
    ),
    "burgers": Card(
        "Burgers",
        "∂u/∂t + (u·∇)u = ν ∇²u",
        "Waves steepen into shocks, which run into each other. Position runs to the right, time upwards.",
        {"viscosity": "0.005 to 0.1; a shock is about 4ν / jump thick", "extent": ANY_BOX, "dt": SHORTER},
    ),
    "cahn_hilliard": Card(
        "Cahn-Hilliard",
        "∂u/∂t = D ∇²(u³ - u - γ ∇²u)",
        "A mixture separates into two phases, whose droplets grow.",
        {
            "diffusivity": "0.01; it sets the pace alone",
            "interface": "0.001 to 0.03; take 1.3 to 1.6 times extent/√γ points",
            "extent": ANY_BOX,
            "dt": SHORTER,
        },
    ),
    "darcy_flow": Card(
        "Darcy flow",
        "-∇·(a ∇u) = source,    u = 0 on the boundary",
        "Left the coefficient, 3 or 12, right the pressure that belongs to it. No time.",
        {
            "source": "any; the solution is proportional to it",
            "face_mean": "`arithmetic`, or `harmonic` for layers in series",
            "points": "`cells` reads coefficients as the public files do",
            "tolerance": "relative residual at which the solve stops",
        },
    ),
    "fisher_kpp": Card(
        "Fisher-KPP",
        "∂u/∂t = ν ∇²u + r u (1 - u)",
        "A population grows to its limit of 1 and spreads in fronts of speed 2√(νr).",
        {
            "viscosity": "0.003 to 0.05; a front is about √(ν/r) thick",
            "rate": "0.5 to 2",
            "extent": ANY_BOX,
            "dt": SHORTER,
        },
    ),
    "gray_scott": Card(
        "Gray-Scott",
        "∂a/∂t = D_a ∇²a - ab² + F(1 - a)\n∂b/∂t = D_b ∇²b + ab² - (F + k) b",
        "Two chemicals react; spots divide and stripes wind. The picture is b.",
        {
            "diffusivity_a": "twice that of b",
            "diffusivity_b": "1e-5",
            "feed": "0.02 to 0.06, with `kill` chooses the pattern",
            "kill": "0.05 to 0.065",
            "extent": "patterns are 0.1 wide: take 130 points per unit of length, more beyond 1000 units of time",
            "dt": "up to 4",
        },
    ),
    "isotropic_turbulence": Card(
        "Isotropic turbulence",
        "∂u/∂t = u × ω - ∇q + ν ∇²u,    ∇·u = 0,    q = p + |u|²/2",
        "Forced turbulence in a periodic box; a slice of the first velocity component.",
        {
            "viscosity": "0.0054 (Re_λ 84) on 60³, 0.02 on 24³",
            "forcing": "off: the turbulence decays",
            "forcing_radius": "1 to 3",
            "dt": "0.002 on 60³, 0.01 on 24³",
            "pressure": "`bernoulli` as in the paper's files, or `static`",
        },
    ),
    "kolmogorov_flow": Card(
        "Kolmogorov flow",
        "∂ω/∂t + u·∇ω = (1/Re) ∇²ω - n cos(n x2) - drag ω",
        "Vorticity of two-dimensional turbulence that is driven by a shear with n waves.",
        {
            "reynolds": "200 to 2000; 1000 wants 256² points",
            "forcing_wavenumber": "4 to 10",
            "drag": "0.1; it keeps the largest eddies from growing",
            "dt": "chosen from the grid",
            "integrator": "`crank_nicolson_heun` is the authors' scheme",
        },
    ),
    "korteweg_de_vries": Card(
        "Korteweg-de Vries",
        "∂u/∂t + 6u ∂u/∂x + ∂³u/∂x³ = 0",
        "Waves break up into solitons, which pass through each other. Position to the right, time upwards.",
        {"extent": "20 to 60", "dt": SHORTER},
    ),
    "kuramoto_sivashinsky": Card(
        "Kuramoto-Sivashinsky",
        "one axis:   ∂u/∂t + u ∂u/∂x + ∂²u/∂x² + ∂⁴u/∂x⁴ = 0\n"
        "more axes:  ∂u/∂t + ½|∇u|² + ∇²u + ∇⁴u = 0,    without the mean of ½|∇u|²",
        "A flame front in chaos: cells merge and split for ever. Position to the right, time upwards.",
        {
            "extent": "22 (a few cells, barely chaotic) to 200",
            "biharmonic": "on more axes: off as in APEBench",
            "dt": SHORTER,
        },
    ),
    "navier_stokes": Card(
        "Navier-Stokes, periodic",
        "∂ω/∂t + u·∇ω = ν ∇²ω + 0.1 (sin 2π(x1 + x2) + cos 2π(x1 + x2))",
        "Vorticity in the set of the paper on Fourier neural operators, here at ν = 1e-4.",
        {
            "viscosity": "1e-5 (the hard set), 1e-4, 1e-3 (smooth)",
            "dt": "chosen from the grid",
            "integrator": "`crank_nicolson_heun` is that of the public generator",
        },
    ),
    "obstacle_flow": Card(
        "Flow past bodies",
        "∂u/∂t + u·∇u = -∇p + ν ∇²u - (χ/η) u - λ (u - U e1),    ∇·u = 0",
        "Vorticity behind random bodies, which the mask leaves out of the domain.",
        {
            "viscosity": "0.002 to 0.01, from which the presets draw",
            "stream": "1; it sets the unit of speed",
            "penalisation": "√(νη) about a tenth of the spacing",
            "extent": "8: the length of the box",
            "dt": "chosen from the grid",
        },
    ),
    "smoke_buoyancy": Card(
        "Smoke in a closed box",
        "∂d/∂t + u·∇d = 0\n∂u/∂t + u·∇u = ν ∇²u - ∇p + buoyancy d e₃,    ∇·u = 0",
        "Blobs of smoke rise from rest between walls; the density in the middle plane.",
        {
            "viscosity": "0.001 to 0.01",
            "buoyancy": "0.2 to 1",
            "dt": "0.75, the frame interval",
            "velocity_points": "`cells` stores velocities at cell centres",
        },
    ),
    "swift_hohenberg": Card(
        "Swift-Hohenberg",
        "∂u/∂t = r u - (1 + ∇²)² u + g u² - u³",
        "Stripes and spots of wavelength 2π come out of noise.",
        {
            "rate": "0.1 to 1; below 0 only a strong `quadratic` makes patterns",
            "quadratic": "0 for stripes, 1 for spots among them",
            "extent": "ten wavelengths are 20π: take 13 points for each",
            "dt": "up to 1/8",
        },
    ),
    "vlasov_poisson": Card(
        "Vlasov-Poisson",
        "∂f/∂t + v·∇ₓf - E·∇ᵥf = 0,    ∇·E = 1 - ∫f dv",
        "Two streams of electrons roll up in phase space: position to the right, velocity upwards. "
        "Two axes, or four for two dimensions of space.",
        {
            "extent": "4π: the longest wave has k = 0.5 and is damped at 0.153; 20.9: k = 0.3 and 0.0126",
            "v_max": "6, or 4.5 with fewer points (f falls to 4e-5 of its maximum)",
            "dt": "up to 0.1",
            "content": "`departure` for waves of a few hundredths of f",
        },
    ),
}
