"""A surrogate on a phase space of four axes: its error, and how fast waves decay in it (Landau damping).

    factformer generate vlasov_poisson --preset four_axes_small --out data/vlasov
    factformer train vlasov --data data/vlasov --out runs/vlasov --set training.updates=3000 \\
        --set protocol.pushforward=0 --set training.batch_size=1 --set training.ema_decay=0.99
    python -m lab.analyses.four_axes runs/vlasov --data data/vlasov [--ship]

A wave ``a cos(k·x)`` on a Maxwellian, k = 0.5, is given to the surrogate and to the solver. Frequency and damping rate
come from a fit of ``exp(-γt) (p cos ωt + q sin ωt)`` to the wave's amplitude in the density, from the end of the
transient to half of the time after which free flight repeats itself on the velocity grid. Before that the surrogate has
run on its own from the first two frames. With ``--ship`` the run is stored in the zoo as `vlasov-4d-small`, in float16;
the numbers are of that bundle and go to its card and to results/cpu/vlasov-4d-small.json.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import curve_fit
from torch import Tensor

import factformer
from factformer import simulate
from factformer.bundle import load, save_bundle
from factformer.data.store import open_dataset
from factformer.evaluation.accuracy import evaluate
from factformer.evaluation.provenance import provenance, write_json
from factformer.surrogate import Surrogate
from factformer.zoo.index import CARD as CARD_FILE
from factformer.zoo.index import DESCRIPTION, WEIGHTS
from lab import ROOT
from lab.analyses.small_bundle import on_card
from lab.equations.landau_damping import TRANSIENT, dispersion_root, perturbed

NAME = "vlasov-4d-small"
WAVENUMBER = 0.5
AMPLITUDES = (0.02, 0.05)
"""Of the density: larger waves are damped faster than the linear theory says."""
CARD = """# {name}

`{model}` for `{problem}` on {shape} points, a phase space of four axes, {parameters:,} parameters. For CPUs.

    surrogate = factformer.load("{name}")

| | |
|---|---|
| task | {context} frames at intervals of {frame_dt:g} in, one per call out: f without its Maxwellian |
| size | {megabytes:.2f} MB, stored in float16 |
| data | `factformer generate vlasov_poisson --preset four_axes_small` |
| training | {minutes:.0f} minutes on {hardware}, shared with other work; {updates:,} updates |
| recipe | `{command}` |
| error, distribution | relative L2 {field[relative_l2]:.4f} ± {field[standard_error]:.4f} over {frames} frames, last frame {field[relative_l2_final]:.4f}; last frame repeated {still:.3f} |
| damping rate of a wave | {rates}; theory {theory:.4f} |
| time | {milliseconds:.0f} ms of one core a call |
| measured in | `results/cpu/{name}.json` |

Limits: waves of 0.05 to 0.2 of the density along the longest waves of a box of 4π, until t = 20. f is the departure from
the Maxwellian of unit density and temperature: add it to have the distribution. One training run; a small grid.
"""  # noqa: E501


def density_wave(frames: Tensor, waves: Sequence[int], spacing: float) -> NDArray[np.floating[Any]]:
    """The amplitude of ``cos(k·x)`` in the density of ``(frame, *grid, 1)``."""
    half = (frames.ndim - 2) // 2
    density = frames[..., 0].double().sum(tuple(range(1 + half, 1 + 2 * half))) * spacing**half
    modes = 2 * torch.fft.fftn(density, dim=tuple(range(1, 1 + half)), norm="forward")
    amplitude: NDArray[np.floating[Any]] = modes[(slice(None), *waves)].real.numpy()
    return amplitude


def damped_wave(times: NDArray[np.floating[Any]], values: NDArray[np.floating[Any]]) -> tuple[float, float]:
    """Damping rate and frequency of the damped wave that fits best, where every period counts alike.

    Values are weighted by the inverse of the envelope of the fit before.
    """
    rate = 0.0
    found = (values[0], 0.0, 0.1, 1.4)
    for _ in range(4):
        growth = np.exp(rate * times)

        def weighted(t: Any, p: float, q: float, gamma: float, omega: float, by: float = rate) -> Any:
            return np.exp((by - gamma) * t) * (p * np.cos(omega * t) + q * np.sin(omega * t))

        found, _ = curve_fit(weighted, times, values * growth, p0=found, maxfev=20_000)
        rate = float(found[2])
    return rate, abs(float(found[3]))


def damping(surrogate: Surrogate, amplitude: float, waves: Sequence[int]) -> dict[str, Any]:
    """Rates in the surrogate and in the solver, from the same start."""
    problem = surrogate.problem
    grid, context, step = problem.grid, problem.num_context_frames, problem.frame_dt
    half, v_max, spacing = grid.num_axes // 2, grid.extent[-1] / 2, grid.spacing(grid.num_axes - 1)
    extent = 2 * math.pi * math.hypot(*waves) / WAVENUMBER
    assert math.isclose(extent, grid.extent[0], rel_tol=1e-6), "the wave does not fit into the box"
    recurrence = 2 * math.pi / (WAVENUMBER * spacing)
    num_frames = int(0.5 * recurrence / step) + 1
    start = perturbed(grid.shape, amplitude, waves, v_max)
    truth = simulate("vlasov_poisson", start, num_frames, step, extent=extent, v_max=v_max, content="departure").float()
    with torch.no_grad():
        found = torch.stack(list(factformer.rollout(surrogate, truth[:, :context], num_frames - context)), dim=1)
    times = np.arange(num_frames) * step
    late = times >= TRANSIENT
    rates = {
        who: damped_wave(times[late], density_wave(frames, [*waves, *[0] * (half - len(waves))], spacing)[late])
        for who, frames in (("solver", truth[0]), ("surrogate", torch.cat([truth[0, :context], found[0]])))
    }
    theory = dispersion_root(WAVENUMBER)
    return {
        "amplitude": amplitude,
        "waves": list(waves),
        "measured_from": TRANSIENT,
        "measured_until": float(times[-1]),
        "calls": num_frames - context,
        "damping": {"theory": -theory.imag, **{who: rate for who, (rate, _) in rates.items()}},
        "frequency": {"theory": theory.real, **{who: frequency for who, (_, frequency) in rates.items()}},
        "damping_over_theory": rates["surrogate"][0] / -theory.imag,
    }


def call_milliseconds(surrogate: Surrogate) -> float:
    """Processor time of a call with one window, the least of several."""
    problem, used = surrogate.problem, []
    context = torch.zeros(1, problem.num_context_frames, *problem.grid.shape, 1)
    with torch.no_grad():
        for _ in range(5):
            began = time.process_time()
            next(factformer.rollout(surrogate, context, 1))
            used.append(time.process_time() - began)
    return 1e3 * min(used)


def measure(surrogate: Surrogate, data: Path) -> dict[str, Any]:
    """Errors on the test split and damping rates."""
    half = surrogate.problem.grid.num_axes // 2
    dataset = open_dataset(data, "test", num_context_frames=surrogate.problem.num_context_frames)
    result = evaluate(surrogate, dataset, timing=False).to_dict()
    directions = [[int(m == axis) for m in range(half)] for axis in range(half)]
    return {
        "distribution": result["fields"]["distribution"],
        "num_frames": result["num_frames"],
        "waves": [damping(surrogate, amplitude, waves) for amplitude in AMPLITUDES for waves in directions],
        "milliseconds_per_call": call_milliseconds(surrogate),
    }


def card(surrogate: Surrogate, found: dict[str, Any], num_bytes: int, hardware: str) -> str:
    rates = ", ".join(
        f"{wave['damping']['surrogate']:.4f} at {wave['amplitude']:g} along x{1 + wave['waves'].index(1)}"
        for wave in found["waves"]
    )
    return CARD.format(
        name=NAME,
        **on_card(surrogate, num_bytes),
        hardware=hardware,
        command=surrogate.provenance["command"],
        field=found["distribution"],
        frames=found["num_frames"],
        still=found["distribution"]["persistence"]["relative_l2"],
        rates=rates,
        theory=-dispersion_root(WAVENUMBER).imag,
        milliseconds=found["milliseconds_per_call"],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--ship", action="store_true", help="store the bundle in the zoo, with its card and result")
    options = parser.parse_args()
    torch.set_num_threads(1)
    began, trained = time.perf_counter(), load(options.run)
    with tempfile.TemporaryDirectory() as scratch:
        folder = ROOT / "zoo" / NAME if options.ship else Path(scratch) / NAME
        save_bundle(trained, folder, trained.provenance, storage=torch.float16, overwrite=True)
        surrogate = factformer.load(folder)
        found = measure(surrogate, options.data)
        num_bytes = sum((folder / name).stat().st_size for name in (DESCRIPTION, WEIGHTS))
    for wave in found["waves"]:
        print(wave["amplitude"], wave["waves"], wave["damping"], wave["frequency"])
    field = found["distribution"]
    print(f"relative L2 {field['relative_l2']:.4f}, last frame repeated {field['persistence']['relative_l2']:.4f}")
    if options.ship:
        made = provenance(seed=0, seconds=time.perf_counter() - began, device="cpu")
        training = {key: trained.provenance[key] for key in ("updates", "training_seconds", "command")}
        sizes = {"bytes": num_bytes, "parameters": surrogate.num_parameters}
        write_json(
            ROOT / "results" / "cpu" / f"{NAME}.json",
            {"analysis": "four axes", "bundle": NAME, "training": training, **sizes, **found, **made},
        )
        (folder / CARD_FILE).write_text(card(surrogate, found, num_bytes, made["hardware"]), encoding="utf-8")


if __name__ == "__main__":
    main()
