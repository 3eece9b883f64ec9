"""Training on a GPU: every precision and feed learns, and a resumed run goes on where it stopped."""

import json
from dataclasses import replace

import pytest
import torch
from small_waves import tiny_experiment

from factformer.data.generate.simulated import simulate_splits
from factformer.pdes import find_pde
from factformer.training.loop.machine import Machine
from factformer.training.loop.train import train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
GPU = Machine("cuda")


def losses(folder):
    return [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("protocol", ["latent_marching", "autoregressive"])
def test_the_gpu_follows_the_curve_of_the_cpu(datasets, tmp_path, protocol):
    experiment = tiny_experiment(protocol, updates=20, log_every=1)
    train(experiment, *datasets, folder=tmp_path / "gpu", machine=GPU)
    train(experiment, *datasets, folder=tmp_path / "cpu", machine=Machine("cpu"))
    assert losses(tmp_path / "gpu") == pytest.approx(losses(tmp_path / "cpu"), rel=2e-2)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("residence", ["device", "stream"])
def test_every_precision_and_feed_learns(datasets, tmp_path, precision, residence):
    experiment = tiny_experiment(updates=40, log_every=1, precision=precision).override(
        [f"data.residence={residence}", "protocol.pushforward=0", "protocol.curriculum=0", "training.clip=1"]
    )
    train(experiment, *datasets, folder=tmp_path / "run", machine=GPU)
    curve = losses(tmp_path / "run")
    assert sum(curve[-5:]) < sum(curve[:5])


def test_a_run_goes_on_where_it_stopped(datasets, tmp_path):
    experiment = tiny_experiment(updates=30, log_every=1)
    train(experiment, *datasets, folder=tmp_path / "straight", machine=GPU)
    stopped = train(experiment, *datasets, folder=tmp_path / "run", machine=GPU, max_minutes=1e-6)
    assert not stopped.finished
    train(experiment, *datasets, folder=tmp_path / "run", machine=GPU, resume=True)
    assert losses(tmp_path / "run") == pytest.approx(losses(tmp_path / "straight"), rel=1e-3)


def test_half_precision_storage_on_the_device(datasets, tmp_path):
    experiment = tiny_experiment(updates=5, log_every=1).override(["data.storage=bfloat16"])
    assert train(experiment, *datasets, folder=tmp_path / "run", machine=GPU).finished


def test_data_that_lie_on_the_device_train_with_a_stride(tmp_path):
    """As in `factformer reproduce`, which solves its data where it trains."""
    preset = replace(find_pde("burgers").presets["small"], resolution=32, simulation_resolution=48, num_frames=16)
    (splits,) = simulate_splits("burgers", preset, {"train": 3, "valid": 2}, device=GPU.device).values()
    experiment = tiny_experiment(updates=3).override(["protocol.stride=2", "data.resolution=null", "problem=burgers"])
    outcome = train(experiment, splits["train"], splits["valid"], folder=tmp_path / "run", machine=GPU)
    assert outcome.finished
