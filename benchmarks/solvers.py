"""Our solvers against the straightforward formulation and against third-party packages, in one run.

    taskset -c 1 python benchmarks/solvers.py --threads 1 --out results/cpu/solvers.json        all, on one core
    python benchmarks/solvers.py --cases kolmogorov_flow --threads 1

Grid, step and scheme are the same for all and the answers are compared. exponax and scikit-fem join in where they are
installed. Processor time is measured, which other work on the machine does not change. The formulations take turns, and
the best of ``--repeats`` is kept.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import straightforward
from factformer import simulate
from factformer.evaluation.provenance import provenance
from factformer.pdes import find_pde

Formulations = dict[str, Callable[[], Tensor]]

# grid, trajectories, steps, precision
CASES: dict[str, list[tuple[int, int, int, torch.dtype]]] = {
    "kolmogorov_flow": [
        (64, 8, 64, torch.float32),
        (256, 2, 128, torch.float32),
        (256, 2, 128, torch.float64),
        (512, 1, 64, torch.float64),
    ],
    "isotropic_turbulence": [(32, 4, 8, torch.float32), (60, 2, 4, torch.float32)],
    "smoke_buoyancy": [(24, 4, 8, torch.float32), (64, 2, 4, torch.float32)],
    "darcy_flow": [(141, 4, 1, torch.float64), (421, 2, 1, torch.float64)],
}


def formulations(name: str, initial: Tensor, steps: int) -> Formulations:
    """What solves the same problem from the same start over the same steps."""
    size = initial.shape[1]
    if name == "kolmogorov_flow":
        dt = 1 / max(size, 128)
        found: Formulations = {
            "ours": lambda: simulate(name, initial, 2, steps * dt, dt=dt)[:, -1, ..., 0],
            "straightforward": lambda: straightforward.kolmogorov_flow(initial, dt, steps),
        }
        if importlib.util.find_spec("exponax") and initial.dtype == torch.float64:
            found["exponax"] = exponax_kolmogorov(initial, dt, steps)
        return found
    if name == "isotropic_turbulence":
        dt, viscosity = 0.002, 50.0 ** (-4 / 3)
        return {
            "ours": lambda: simulate(name, initial, 2, steps * dt, dt=dt, forcing=False)[:, -1, ..., 1:],
            "straightforward": lambda: straightforward.isotropic_turbulence(initial, dt, steps, viscosity),
        }
    if name == "smoke_buoyancy":
        return {
            "ours": lambda: simulate(name, initial, 2, steps * 0.75, dt=0.75)[:, -1],
            "straightforward": lambda: straightforward.smoke_buoyancy(initial, 0.75, steps),
        }
    found = {
        "ours": lambda: simulate(name, initial)[:, 0, ..., 0],
        "straightforward": lambda: straightforward.darcy_flow(initial),
    }
    if importlib.util.find_spec("skfem"):
        found["scikit-fem"] = skfem_darcy(initial)
    return found


def exponax_kolmogorov(initial: Tensor, dt: float, steps: int) -> Callable[[], Tensor]:
    """ETDRK4 of exponax, compiled, over the whole batch."""
    import exponax
    import jax

    jax.config.update("jax_enable_x64", True)
    stepper = exponax.stepper.KolmogorovFlowVorticity(
        2,
        2 * math.pi,
        initial.shape[1],
        dt,
        diffusivity=1e-3,
        drag=-0.1,
        injection_mode=8,
        order=4,
        convection_scale=-1.0,
    )
    run = jax.jit(jax.vmap(exponax.repeat(stepper, steps)))
    state = jax.numpy.asarray(initial.movedim(-1, 1).numpy())
    return lambda: torch.from_numpy(np.array(run(state)))[:, 0]


def skfem_darcy(coefficient: Tensor) -> Callable[[], Tensor]:
    """Bilinear elements of scikit-fem on the same nodes; another discretisation, so the answers differ a little."""
    import skfem
    from skfem.helpers import dot, grad

    size = coefficient.shape[1]
    mesh = skfem.MeshQuad.init_tensor(np.linspace(0, 1, size), np.linspace(0, 1, size))
    basis = skfem.Basis(mesh, skfem.ElementQuad1())
    index = np.rint(mesh.p * (size - 1)).astype(int)
    place = index[0] * size + index[1]

    @skfem.BilinearForm
    def stiffness(u: Any, v: Any, w: Any) -> Any:
        return w["a"] * dot(grad(u), grad(v))

    @skfem.LinearForm
    def load(v: Any, w: Any) -> Any:
        return v

    def run() -> Tensor:
        result = []
        for a in coefficient[..., 0].double().numpy():
            matrix = stiffness.assemble(basis, a=basis.interpolate(a.ravel()[place]))
            u = skfem.solve(*skfem.condense(matrix, load.assemble(basis), D=basis.get_dofs().all()))
            field = np.empty(size * size)
            field[place] = u
            result.append(torch.from_numpy(field.reshape(size, size)))
        return torch.stack(result).to(coefficient.dtype)

    return run


def measure(name: str, size: int, batch: int, steps: int, dtype: torch.dtype, repeats: int) -> list[dict[str, Any]]:
    """Rows of one case; ``ratio`` is the time of a formulation over ours."""
    pde = find_pde(name)
    generators = [torch.Generator().manual_seed(i) for i in range(batch)]
    initial = pde.sample_initial(pde.problem(size).grid, generators, dtype=dtype, device="cpu")
    runs = formulations(name, initial, steps)
    answers = {label: run() for label, run in runs.items()}  # compiles and warms up, too
    best = dict.fromkeys(runs, math.inf)
    for _ in range(repeats):
        for label, run in runs.items():
            began = time.process_time()
            run()
            best[label] = min(best[label], time.process_time() - began)
    scale = answers["ours"].norm()
    return [
        {
            "problem": name,
            "resolution": size,
            "batch": batch,
            "steps": steps,
            "dtype": str(dtype).split(".")[1],
            "method": label,
            "milliseconds": 1e3 * seconds / batch / steps,
            "ratio": seconds / best["ours"],
            "difference": float((answers[label] - answers["ours"]).norm() / scale),
        }
        for label, seconds in best.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    began = time.perf_counter()
    rows = []
    print("| problem | grid | batch | dtype | formulation | ms per trajectory and step | times ours | difference |")
    print("|---|---|---|---|---|---|---|---|")
    for name in options.cases:
        for size, batch, steps, dtype in CASES[name]:
            for row in measure(name, size, batch, steps, dtype, options.repeats):
                rows.append(row)
                print(
                    "| {problem} | {resolution} | {batch} | {dtype} | {method} | {milliseconds:.2f} | {ratio:.1f} "
                    "| {difference:.1e} |".format(**row),
                    flush=True,
                )
    if options.out is not None:
        made = provenance(seed=0, seconds=time.perf_counter() - began)
        result = {"threads": options.threads, "results": rows, **made}
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
