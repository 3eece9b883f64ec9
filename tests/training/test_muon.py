"""Muon: singular values near one, AdamW for the rest, and a state that a checkpoint brings back."""

import json
import shutil

import pytest
import torch
from small_waves import tiny_experiment, wave_data
from torch import nn

from factformer.nn.convolution import Convolution
from factformer.training.loop.optimizer.muon import Muon, layer_matrices, orthogonalized
from factformer.training.loop.train import train
from factformer.training.runfolder import checkpoint


@pytest.mark.parametrize("shape", [(3, 16, 16), (2, 24, 8), (2, 8, 24)])
def test_singular_values_come_close_to_one(shape):
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalized(matrices))
    assert values.min() > 0.4
    assert values.max() < 1.3


def test_what_is_no_matrix_is_moved_as_by_adamw():
    torch.manual_seed(0)
    ours, theirs = nn.Linear(5, 3), nn.Linear(5, 3)
    theirs.load_state_dict(ours.state_dict())
    muon = Muon(ours.parameters(), [], lr=0.01, weight_decay=0.1)
    adamw = torch.optim.AdamW(theirs.parameters(), lr=0.01, weight_decay=0.1)
    x = torch.randn(7, 5)
    for _ in range(4):
        for module, optimizer in ((ours, muon), (theirs, adamw)):
            optimizer.zero_grad()
            module(x).square().mean().backward()
            optimizer.step()
    assert torch.allclose(ours.weight, theirs.weight, atol=1e-6)
    assert torch.allclose(ours.bias, theirs.bias, atol=1e-6)


def test_a_matrix_moves_by_the_size_of_an_adamw_step():
    torch.manual_seed(0)
    layer = nn.Linear(64, 32, bias=False)
    before = layer.weight.detach().clone()
    optimizer = Muon(layer.parameters(), layer_matrices(nn.Sequential(layer)), lr=0.01, weight_decay=0.0)
    layer(torch.randn(50, 64)).square().mean().backward()
    optimizer.step()
    step = (layer.weight.detach() - before).square().mean().sqrt()
    assert 0.1 * 0.01 < step < 0.4 * 0.01


def test_a_run_learns_and_goes_on_to_the_same_weights(tmp_path):
    experiment = tiny_experiment(optimizer="muon", keep_last=10, learning_rate=1e-2)
    whole = train(experiment, *wave_data(), folder=tmp_path / "whole")
    lines = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["loss"] < 0.8 * lines[0]["loss"]
    shutil.copytree(tmp_path / "whole", tmp_path / "parts")
    shutil.rmtree(tmp_path / "parts" / "bundle")
    for path in checkpoint.checkpoints(tmp_path / "parts" / "checkpoints"):
        if int(path.name.partition("-")[2]) > 22:
            shutil.rmtree(path)
    resumed = train(experiment, *wave_data(), folder=tmp_path / "parts", resume=True)
    for ours, theirs in zip(whole.surrogate.parameters(), resumed.surrogate.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_the_learning_rate_may_be_a_number_on_the_device():
    moved = []
    for rate in (0.01, torch.tensor(0.01)):
        torch.manual_seed(0)
        layer = nn.Linear(6, 4)
        optimizer = Muon(layer.parameters(), [layer.weight], lr=rate, weight_decay=0.1)
        layer(torch.ones(3, 6)).square().mean().backward()
        optimizer.step()
        moved.append(torch.cat([p.detach().flatten() for p in layer.parameters()]))
    assert torch.equal(*moved)


def test_convolutions_between_channels_are_matrices_and_those_of_single_channels_are_not():
    mixing, single = Convolution(("periodic",), 6, 4, 3), Convolution(("periodic",), 6, 6, 3, groups=6)
    assert layer_matrices(nn.Sequential(mixing, single)) == [mixing.weight]
    optimizer = Muon(mixing.parameters(), [mixing.weight], lr=0.1, weight_decay=0.0)
    before = mixing.weight.detach().clone()
    mixing(torch.randn(2, 9, 6)).square().mean().backward()
    optimizer.step()
    moved = (mixing.weight.detach() - before).flatten(1) / (0.1 * 0.2 * 18**0.5)
    values = torch.linalg.svdvals(moved)
    assert values.min() > 0.4
    assert values.max() < 1.3
