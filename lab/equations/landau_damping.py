"""Landau damping of the Vlasov-Poisson solver against its dispersion relation, in phase spaces of two and four axes.

    python -m lab.equations.landau_damping --out results/cpu/landau_damping.json

A weak wave on a Maxwellian, ``f = (1 + a cos(k·x)) exp(-v²/2) / (2π)^(d/2)``, oscillates with the frequency ω and
decays with the rate γ of the least damped root of

    1 + (1 + ζ Z(ζ)) / k² = 0,    ζ = (ω - iγ) / (√2 k),    Z(ζ) = i √π w(ζ),

where w is Faddeeva's function. On four axes the wave runs along the first position or along the diagonal of both, in a
box whose length makes k the same.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import torch
from scipy.special import wofz
from torch import Tensor

from factformer.evaluation.provenance import provenance, write_json
from factformer.pdes.vlasov_poisson import ElectricField, Parameters, pde
from lab.command_line import out_and_numbers

FRAME_DT, TRANSIENT, DURATION = 0.1, 6.0, 25.0
"""Rates are measured from the end of the transient to half of the recurrence time, or to the end if that is earlier."""
GUESSES = {0.5: 1.4 - 0.15j, 0.3: 1.16 - 0.013j}
"""Near the least damped root, by wavenumber."""
CASES: tuple[tuple[tuple[int, ...], tuple[int, ...], float], ...] = (
    ((32, 64), (1,), 0.5),
    ((32, 32), (1,), 0.5),
    ((16, 16, 32, 32), (1, 0), 0.5),
    ((32, 32, 32, 32), (1, 0), 0.5),
    ((32, 32, 32, 32), (1, 1), 0.5),
    ((32, 32, 32, 32), (1, 1), 0.3),
)
"""Points, waves in the box along each position, and wavenumber."""


def dispersion_root(wavenumber: float) -> complex:
    """``ω - iγ`` by the secant rule."""

    def dispersion(frequency: complex) -> complex:
        place = frequency / (math.sqrt(2) * wavenumber)
        return complex(1 + (1 + place * 1j * math.sqrt(math.pi) * wofz(place)) / wavenumber**2)

    before, now = GUESSES[wavenumber], GUESSES[wavenumber] * 1.001
    for _ in range(50):
        slope = dispersion(now) - dispersion(before)
        if slope == 0:
            break
        before, now = now, now - dispersion(now) * (now - before) / slope
    return now


def perturbed(shape: Sequence[int], amplitude: float = 0.01, waves: Sequence[int] = (1,), v_max: float = 6.0) -> Tensor:
    """``(1 + a cos(k·x))`` times a Maxwellian, ``(1, *shape, 1)``; ``waves`` in the box along the first positions."""
    half = len(shape) // 2
    phase, bells = torch.zeros((), dtype=torch.float64), torch.ones((), dtype=torch.float64)
    for m, size in enumerate(shape):
        index = torch.arange(size, dtype=torch.float64).reshape([-1 if axis == m else 1 for axis in range(len(shape))])
        if m < len(waves):
            phase = phase + 2 * math.pi * waves[m] * index / size
        if m >= half:
            v = (2 * index / size - 1) * v_max
            bells = bells * torch.exp(-v.square() / 2) / math.sqrt(2 * math.pi)
    return ((1 + amplitude * torch.cos(phase)) * bells).expand(tuple(shape))[None, ..., None]


def field_energy(states: Tensor, **parameters: Any) -> Tensor:
    """The mean of ``|E|²`` of distributions ``(batch, *grid)``."""
    energy = torch.zeros(len(states), dtype=states.dtype)
    for component in ElectricField(states, Parameters(**parameters))(states):
        energy = energy + component.square().flatten(1).mean(1)
    return energy


def damping_and_frequency(energy: Tensor, frame_dt: float) -> tuple[float, float]:
    """Rates from the maxima of the energy, which falls as ``exp(-2γt) cos²(ωt)``: two maxima a period."""
    inner = energy[1:-1]
    peaks = ((inner > energy[:-2]) & (inner >= energy[2:])).nonzero().flatten() + 1
    times, heights = [], []
    for place in peaks.tolist():  # a parabola through three values of the logarithm
        a, b, c = energy[place - 1 : place + 2].log().tolist()
        offset = 0.5 * (a - c) / (a - 2 * b + c)
        times.append((place + offset) * frame_dt)
        heights.append(b - 0.25 * (a - c) * offset)
    slope = (heights[-1] - heights[0]) / (times[-1] - times[0])
    return -slope / 2, math.pi * (len(times) - 1) / (times[-1] - times[0])


def measured(shape: Sequence[int], waves: Sequence[int], wavenumber: float, dt: float) -> dict[str, Any]:
    """One run: rates beside theory, and how well mass and norm are kept."""
    began = time.process_time()
    parameters = Parameters(extent=2 * math.pi * math.hypot(*waves) / wavenumber, dt=dt)
    energies, sums = [], []
    for frame in pde.frames(perturbed(shape, waves=waves), round(DURATION / FRAME_DT) + 1, FRAME_DT, parameters):
        state = frame[..., 0]
        energies.append(field_energy(state, extent=parameters.extent))
        sums.append((float(state.sum()), float(state.square().sum())))
    # On velocities dv apart free flight repeats itself after 2π / (k dv), with k along one velocity axis.
    spacing, component = 2 * parameters.v_max / shape[-1], wavenumber * max(waves) / math.hypot(*waves)
    recurrence = 2 * math.pi / (component * spacing)
    energy, begin = torch.cat(energies), round(TRANSIENT / FRAME_DT)
    end = min(DURATION, recurrence / 2)
    damping, frequency = damping_and_frequency(energy[begin : round(end / FRAME_DT) + 1], FRAME_DT)
    until_the_end, _ = damping_and_frequency(energy[begin:], FRAME_DT)
    theory = dispersion_root(wavenumber)
    kept = [max(abs(now[i] / sums[0][i] - 1) for now in sums) for i in range(2)]
    return {
        "points": list(shape),
        "waves": list(waves),
        "wavenumber": wavenumber,
        "dt": dt,
        "recurrence_time": recurrence,
        "measured_until": end,
        "damping": damping,
        "damping_theory": -theory.imag,
        "damping_error": damping / -theory.imag - 1,
        "damping_until_the_end": until_the_end,
        "frequency": frequency,
        "frequency_theory": theory.real,
        "frequency_error": frequency / theory.real - 1,
        "mass_error": kept[0],
        "norm_error": kept[1],
        "processor_seconds": round(time.process_time() - began, 1),
    }


def main() -> None:
    options = out_and_numbers(__doc__, dt=0.1)
    torch.set_num_threads(1)
    began, rows = time.perf_counter(), []
    for shape, waves, wavenumber in CASES:
        rows.append(measured(shape, waves, wavenumber, options.dt))
        print(rows[-1], flush=True)
        write_json(
            options.out,
            {
                "analysis": "landau_damping",
                "amplitude": 0.01,
                "measured_from": TRANSIENT,
                "duration": DURATION,
                "precision": "float64",
                "rows": rows,
                **provenance(seconds=time.perf_counter() - began),
            },
        )


if __name__ == "__main__":
    main()
