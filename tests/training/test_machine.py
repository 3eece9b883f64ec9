"""What Fabric makes of a batch."""

import pytest
import torch
from torch import nn

from factformer.errors import UserError
from factformer.training.loop.machine import Machine, start


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_frames_reach_the_loss_as_they_are(precision):
    class Look(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(2, 2)

        def forward(self, frames, extra):
            self.seen = frames
            return self.linear(frames), frames.sum()

    module = Look()
    frames = 1000.0 + torch.rand(3, 2)
    prediction, total = start(Machine("cpu"), precision).setup_module(module)(frames, {"plan": 1})
    assert module.seen.dtype == torch.float32
    assert torch.equal(module.seen, frames)
    assert total == frames.sum()
    products = prediction.bfloat16().float()
    assert torch.equal(prediction, products) == (precision == "bf16-mixed"), "products are rounded all the same"


def test_a_machine_of_another_kind_is_one_line():
    with pytest.raises(UserError, match="unknown device 'abacus'"):
        Machine("abacus")  # type: ignore[arg-type]


def test_metal_is_taken_where_it_is_there(monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(UserError, match="--device mps asked for, and this computer has none"):
        Machine("mps").check()
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    Machine("mps").check()
    with pytest.raises(UserError, match="--device mps trains in one process"):
        Machine("mps", devices=2).check()


def test_processes_by_the_thousand_are_refused_before_they_are_started():
    with pytest.raises(UserError, match=r"--devices 1000 asked for, this computer has \d+ cores"):
        Machine("cpu", devices=1000).check()
