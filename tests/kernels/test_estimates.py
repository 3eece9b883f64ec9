"""The memory plan of a training step, held against peaks measured on a GPU."""

import json
import math
from pathlib import Path

import pytest
import torch

from factformer import Field, Grid, Problem, build_surrogate, metrics
from factformer.batch import Batch
from factformer.kernels.estimates import floor_seconds, largest_batch, training_bytes

PLANE = {"depth": 4, "heads": 8, "kernel_dim": 128}
BOX = {"depth": 4, "heads": 6, "kernel_dim": 192}
CASES = {
    "128² × 4": ((128, 128), 4, 4, PLANE, 1),
    "256² × 10": ((256, 256), 10, 4, PLANE, 1),
    "64³ × 4": ((64, 64, 64), 4, 2, BOX, 1),
    "64² × 32 + optimiser": ((64, 64), 32, 4, PLANE, 1),
    "64³ × 4, 4 channels": ((64, 64, 64), 4, 2, BOX, 4),
}
MEASURED = Path(__file__).parents[2] / "results" / "speed"


def surrogate_for(shape, steps, overrides, channels=1):
    problem = Problem("plan", Grid(shape, 2 * math.pi, True), (Field("field", channels),), num_context_frames=10)
    return build_surrogate(problem, marching_steps=steps, **overrides)


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_the_measured_peak_to_a_tenth(name):
    shape, batch, steps, overrides, channels = CASES[name]
    files = [json.loads(path.read_text()) for path in MEASURED.glob("model_h200*.json")]
    rows = {row["label"]: row for file in files for row in file["rows"]}
    surrogate = surrogate_for(shape, steps, overrides, channels)
    assert training_bytes(surrogate, batch) / 1e9 == pytest.approx(rows[name]["ours"]["train_gb"], rel=0.1)


NEW = {"plane": ((96, 160), 6, 3, PLANE, 1), "box of three channels": ((40, 48, 56), 2, 2, BOX, 3)}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", NEW)
def test_foretells_the_peak_of_shapes_it_was_not_fitted_to(name):
    shape, batch, steps, overrides, channels = NEW[name]
    surrogate = surrogate_for(shape, steps, overrides, channels).cuda()
    frames = torch.randn(batch, 10, *shape, channels, device="cuda")
    target = torch.randn(batch, steps, *shape, channels, device="cuda")

    def step():
        surrogate.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            prediction = surrogate.predict(Batch(frames), steps, surrogate.problem.grid)
        metrics.loss(prediction, target, surrogate.problem.state_slices).backward()

    step()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    assert training_bytes(surrogate, batch) == pytest.approx(torch.cuda.max_memory_allocated(), rel=0.1)


def test_the_largest_batch_fits_and_the_next_does_not():
    surrogate = surrogate_for((64, 64), 2, {"depth": 2, "heads": 2, "kernel_dim": 16, "dim": 32})
    memory = 8e9
    batch = largest_batch(surrogate, memory)
    assert training_bytes(surrogate, batch) <= 0.9 * memory < training_bytes(surrogate, batch + 1)
    assert largest_batch(surrogate, memory, shape=(128, 128)) < batch
    assert largest_batch(surrogate, 1e6) == 0


def test_the_floor_grows_with_the_batch_and_training_costs_more():
    surrogate = surrogate_for((32, 32), 2, {"depth": 2, "heads": 2, "kernel_dim": 16, "dim": 32})
    infer, train = floor_seconds(surrogate, 2, 2)
    assert train > 2 * infer
    assert floor_seconds(surrogate, 4, 2)[0] == pytest.approx(2 * infer)


def test_wide_layers_take_the_plain_path(monkeypatch):
    from factformer.kernels import attention_fits, marching_fits, working_dtype

    monkeypatch.setenv("FACTFORMER_FUSED", "force")
    x = torch.zeros(1)
    assert working_dtype(x, attention_fits(128, 64, 192), 64) == torch.float32
    assert working_dtype(x, attention_fits(256, 64, 128), 64) is None
    assert working_dtype(x, attention_fits(128, 128, 128), 64) is None
    assert working_dtype(x, marching_fits(128, 256, 4), 64) == torch.float32
    assert working_dtype(x, marching_fits(256, 512, 4), 64) is None
    assert working_dtype(x.double(), True, 64) is None
    monkeypatch.setenv("FACTFORMER_FUSED", "auto")
    assert working_dtype(x.bfloat16(), True, 64) is None, "the plain path is the one on a CPU"
