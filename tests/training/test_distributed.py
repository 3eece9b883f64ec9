"""Several processes: the same run as one, sharded or not, and an end instead of a hang when one is lost."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from killable_runs import assert_all_checkpoints_load
from small_waves import waves

import factformer

SCRIPT = Path(__file__).parent / "distributed_run.py"


def start(folder, strategy, devices, *flags):
    command = [sys.executable, str(SCRIPT), str(folder), strategy, str(devices), *flags]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def run(folder, strategy, devices, *flags):
    process = start(folder, strategy, devices, *flags)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    return read(folder)


def read(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def values(lines, key):
    return [line[key] for line in lines if key in line]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """One process with the whole batch."""
    return run(tmp_path_factory.mktemp("alone") / "run", "auto", 1)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_processes_follow_the_loss_curve_of_one(alone, tmp_path, strategy):
    folder = tmp_path / "run"
    lines = run(folder, strategy, 2)
    for key in ("loss", "gradient_norm", "validation"):
        assert values(lines, key) == pytest.approx(values(alone, key), abs=1e-5), key
    surrogate = factformer.load(folder / "bundle")
    with torch.no_grad():
        assert torch.isfinite(surrogate(waves(1)[:, :3], 2)).all()


SEVERAL_STEPS = ("protocol.stride=[1,2]", "protocol.pushforward=0")
"""The time step is a parameter then, and modulates every layer."""


@pytest.mark.parametrize(
    "model",
    [
        (),
        pytest.param(("model.name=unet", "model.norm_groups=4", "model.multipliers=[1,2]"), marks=pytest.mark.slow),
    ],
    ids=["factformer", "unet"],
)
def test_sharded_layers_are_modulated_before_they_run(tmp_path, model):
    """Layers of a backbone may lie in lists of lists."""
    alone = run(tmp_path / "alone", "auto", 1, *SEVERAL_STEPS, *model)
    lines = run(tmp_path / "sharded", "fsdp", 2, *SEVERAL_STEPS, *model)
    assert values(lines, "loss") == pytest.approx(values(alone, "loss"), abs=1e-5)
    assert factformer.load(tmp_path / "sharded" / "bundle").problem.parameters == ("frame_dt",)


@pytest.mark.parametrize("strategy", ["ddp", pytest.param("fsdp", marks=pytest.mark.slow)])
def test_a_lost_process_ends_the_job_with_an_error_and_the_job_resumes(alone, tmp_path, strategy):
    folder = tmp_path / "run"
    process = start(folder, strategy, 2, "slow")
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if (folder / "metrics.jsonl").exists() and len(read(folder)) >= 5:
            break
        time.sleep(0.05)
    os.kill(int(Path(f"{folder}.1.pid").read_text(encoding="utf-8")), signal.SIGKILL)
    output, _ = process.communicate(timeout=60)
    assert process.returncode not in (0, None), output
    assert assert_all_checkpoints_load(folder) >= 3
    resumed = run(folder, strategy, 2, "resume")
    assert values(resumed, "update") == list(range(1, 13))
    assert values(resumed, "loss") == pytest.approx(values(alone, "loss"), abs=1e-5)
