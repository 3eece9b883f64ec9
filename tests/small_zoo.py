"""A bundle of a Kolmogorov surrogate that is not trained, small enough to roll out anywhere."""

from dataclasses import replace
from pathlib import Path

from factformer import build_surrogate
from factformer.bundle import save_bundle
from factformer.pdes import find_pde

SMALL = {"dim": 8, "depth": 1, "heads": 2, "head_dim": 4, "kernel_dim": 4}


def save_small_bundle(path: Path) -> Path:
    problem = replace(find_pde("kolmogorov_flow").problem(32), num_context_frames=2, horizon=4)
    return save_bundle(build_surrogate(problem, "factformer_plus", **SMALL), path, {"seed": 0})
