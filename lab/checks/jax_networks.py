"""A network of APEBench, trained and judged by APEBench itself: its data, optimiser, batches and metric, in JAX.

    pip install apebench
    python -m lab.checks.jax_networks 2d_diff_ks 'UNet;12;2;relu' --seed 0 --out results/apebench/NAME.json

Its trainer takes no time limit: ``--updates`` are 10,000 as in its paper, and the seconds are told. Networks are
written as in its documentation. Trajectories are other draws than those of `lab.checks.emulated`, from the same
distribution.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from typing import Any

import numpy as np
import torch

from factformer.studies.apebench.emulation import SIZES, geometric_mean
from factformer.studies.apebench.scenarios import POINTS, SCENARIOS
from lab.checks.common import DEVICE, keep, options

NETWORKS = ("Conv;34;10;relu", "UNet;12;2;relu", "Res;26;8;relu", "FNO;12;18;4;gelu", "Dil;2;32;2;relu")


def scenario_of(name: str, tiny: bool, updates: int) -> Any:
    """The scenario of APEBench, with as many states in a roll-out as ours."""
    apebench = importlib.import_module("apebench")
    size, kind = SIZES["tiny" if tiny else "paper"], name.split("_", 1)[1]
    kind, given = ("phy_gs_type", {"pattern_type": "theta"}) if kind == "phy_gs_theta" else (kind, {})
    axes = SCENARIOS[name].num_axes
    return apebench.scenarios.scenario_dict[kind](
        num_spatial_dims=axes,
        num_points=32 if tiny and axes > 1 else POINTS[axes],
        num_train_samples=size.trajectories["train"],
        train_temporal_horizon=size.states["train"] - 1,
        num_test_samples=size.trajectories["test"],
        test_temporal_horizon=size.states["test"] - 1,
        optim_config=f"adam;{updates};warmup_cosine;0.0;1e-3;{updates // 5}",
        **given,
    )


def trained_and_judged(scenario: Any, network: str, seed: int) -> dict[str, Any]:
    """Seconds of the first update with compilation and of the whole training, and the error of each state."""
    jax = importlib.import_module("jax")
    began = time.perf_counter()
    trainer = scenario.get_trainer(train_config="one")
    first, second = jax.random.split(jax.random.PRNGKey(seed), 2)
    stepper = scenario.get_neural_stepper(task_config="predict", network_config=network, key=first)
    prepared = time.perf_counter()
    stepper, losses, _ = trainer(stepper, second, record_loss_every=scenario.record_loss_every)
    jax.block_until_ready(losses)
    finished = time.perf_counter()
    metric = scenario.get_metric_fns()["mean_nRMSE"]
    errors = torch.from_numpy(np.array(scenario.perform_test_rollout(stepper, metric)))
    return {
        "geometric_mean": geometric_mean(errors),
        "per_frame": errors.tolist(),
        "parameters": int(scenario.get_parameter_count(network)),
        "data_seconds": prepared - began,
        "training_seconds": finished - prepared,
        "test_seconds": time.perf_counter() - finished,
    }


def main() -> int:
    chosen = options(
        __doc__,
        ("scenario", {"choices": list(SCENARIOS)}),
        ("network", {"metavar": "NETWORK", "help": f"such as {', '.join(NETWORKS)}"}),
        ("--seed", {"type": int, "default": 0}),
        ("--updates", {"type": int, "default": 10_000}),
    )
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # others may use the GPU as well
    began = time.perf_counter()
    updates = 20 if chosen.tiny else chosen.updates
    scenario = scenario_of(chosen.scenario, chosen.tiny, updates)
    result = trained_and_judged(scenario, chosen.network, chosen.seed)
    platform = importlib.import_module("jax").default_backend()
    told = {"scenario": chosen.scenario, "network": chosen.network, "training_seed": chosen.seed, "updates": updates}
    keep(chosen.out, "jax_networks", began, **told, jax=platform, tiny=chosen.tiny, result=result)
    print(f"{chosen.scenario}, {chosen.network} on {platform}: {result['geometric_mean']:.4f}", flush=True)
    return 0 if platform == {"cuda": "gpu"}.get(DEVICE, DEVICE) else 1


if __name__ == "__main__":
    sys.exit(main())
