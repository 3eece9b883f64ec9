"""Memory counted without running, against what tensors hold and against peaks measured on a GPU."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from factformer.evaluation.baselines import EAGER, SETTINGS, runner_of
from factformer.training.footprint.live_memory import BLOCK, LiveMemory

MEASURED = Path(__file__).parents[3] / "results" / "speed" / "model_h200.json"
MEGABYTE = 2**20


def test_counts_what_is_alive_and_forgets_what_is_not():
    held = torch.zeros(MEGABYTE // 4)
    with LiveMemory([held]) as memory:
        first = torch.ones(MEGABYTE // 4)
        view = first[::2]  # shares the storage
        second = first + 1
        assert memory.now == 3 * MEGABYTE
        del first, second
        assert memory.now == 2 * MEGABYTE
        del view
        assert memory.now == MEGABYTE
    assert memory.peak == 3 * MEGABYTE


def test_what_a_backward_pass_needs_stays_until_it_is_done():
    x = torch.zeros(MEGABYTE // 4, requires_grad=True)
    with FakeTensorMode(allow_non_fake_inputs=True), LiveMemory([x]) as memory:
        y = x.sin().exp().sum()
        kept = memory.now
        y.backward()
    assert kept == 2 * MEGABYTE + BLOCK  # x, what exp gave and the sum; what the sine gave is not needed again


@pytest.mark.parametrize("name", ["128", "256", "box", "box4"])
def test_textbook_training_step_within_a_tenth_of_the_peak_on_a_gpu(name, monkeypatch):
    setting = SETTINGS[name]
    rows = {row["label"]: row for row in json.loads(MEASURED.read_text())["rows"]}
    monkeypatch.setattr(nn.Module, "to", lambda module, *_: module)  # fake weights cannot be moved
    with FakeTensorMode():
        runner = runner_of(EAGER, setting, "cpu")
        held = [*runner.surrogate.parameters(), *runner.surrogate.buffers(), runner.context, runner.target]
        with LiveMemory(held) as memory:
            runner.train()
            runner.train()
    assert memory.peak / 1e9 == pytest.approx(rows[setting.name][EAGER]["train_gb"], rel=0.1)
